// The vector kernels for AVX2 with FMA and F16C: BUILD gives the flags on x86-64. Other code must
// not be in this file: it would be compiled for AVX2 too, and could run before the processor is
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
