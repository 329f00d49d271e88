// The vector kernels for AVX2 with FMA and F16C. BUILD sets the flags on x86-64. Do not add other
// code to this file: it would also be compiled for AVX2 and could run before the processor is
// checked.

#include "reprise/attention/cpu/vector_kernels.h"
#include "reprise/attention/cpu/vector_kernels.inc"

namespace reprise {

#if defined(__AVX2__) && defined(__FMA__)
constexpr VectorKernels kKernels = MakeKernels("avx2");
const VectorKernels* const internal::kAvx2VectorKernels = &kKernels;
#else
const VectorKernels* const internal::kAvx2VectorKernels = nullptr;
#endif

}  // namespace reprise
