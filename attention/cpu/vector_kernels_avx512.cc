// The vector kernels for AVX-512 (F, DQ, BW, VL). BUILD sets the flags on x86-64. Do not add other
// code to this file: it would also be compiled for AVX-512 and could run before the processor is
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
