// Stores a finished row of out on the CPU: rounded to the dtype, or quantised if the dtype is fp8.
//
// Pure functions. Thread safety: same as the memory.

#ifndef REPRISE_ATTENTION_CPU_OUTPUT_STORE_H_
#define REPRISE_ATTENTION_CPU_OUTPUT_STORE_H_

#include <cstdint>

#include "reprise/attention/cpu/tile.h"
#include "reprise/base/dtype.h"

namespace reprise {

// Returns the scale that maps `largest` (at least 1e-10) to the largest value of the fp8 type.
float BlockScaleOf(DType dtype, float largest);

// Stores values[d] * factor for d < head_dim_v in out at (token, head). Also stores the block
// scales, if out has any.
void StoreOutput(const HostCall& call, int64_t token, int64_t head, const float* values,
                 float factor);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CPU_OUTPUT_STORE_H_
