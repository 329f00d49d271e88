// The vector kernels for AVX-512 (F, DQ, BW, VL): BUILD gives the flags on x86-64. Other code must
// not be in this file: it would be compiled for AVX-512 too, and could run before the processor is
// checked.

#include "reprise/attention/cpu/vector_kernels.h"
#include "reprise/attention/cpu/vector_kernels.inc"

namespace reprise {

#if defined(__AVX512F__) && defined(__AVX512VL__)
constexpr VectorKernels kKernels = MakeKernels("avx512");
const VectorKernels* const internal::kAvx512VectorKernels = &kKernels;
#else
const VectorKernels* const internal::kAvx512VectorKernels = nullptr;
#endif

}  // namespace reprise
