// How a finished row of out is stored on the CPU: rounded to its type, or quantised if the type is
// fp8.
//
// Pure functions. Thread safety: that of the memory.

#ifndef REPRISE_ATTENTION_CPU_OUTPUT_STORE_H_
#define REPRISE_ATTENTION_CPU_OUTPUT_STORE_H_

#include <cstdint>

#include "reprise/attention/cpu/tile.h"
#include "reprise/base/dtype.h"

namespace reprise {

// The scale that maps `largest` (at least 1e-10) to the largest value of the fp8 type.
float BlockScaleOf(DType dtype, float largest);

// Stores values[d] * factor, d < head_dim_v, as out of (token, head), and its block scales if there
// are any.
void StoreOutput(const HostCall& call, int64_t token, int64_t head, const float* values,
                 float factor);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CPU_OUTPUT_STORE_H_
