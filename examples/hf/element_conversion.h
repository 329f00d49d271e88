// Unstable: any version may change this header (docs/embedding.md).
//
// Converts floating-point elements of a file to the dtype of the computation.
//
//   ConvertElements(DType::kBFloat16, bytes, DType::kFloat32, out, 4096);
//
// Rounds to nearest, ties to even, as LibTorch does; one thread. Thread safety: pure functions.

#ifndef REPRISE_HF_ELEMENT_CONVERSION_H_
#define REPRISE_HF_ELEMENT_CONVERSION_H_

#include <cstdint>

#include "reprise/base/dtype.h"

namespace reprise {

// `from`: float64, float32, float16 or bfloat16; `to`: the same but float64. Both ends are aligned
// to their elements and do not overlap.
void ConvertElements(DType from, const void* source, DType to, void* target, int64_t count);

}  // namespace reprise

#endif  // REPRISE_HF_ELEMENT_CONVERSION_H_
