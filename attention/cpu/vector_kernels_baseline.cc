// The vector kernels for the compiler's default target.

#include "reprise/attention/cpu/vector_kernels.h"
#include "reprise/attention/cpu/vector_kernels.inc"

namespace reprise {

constexpr VectorKernels kKernels = MakeKernels("baseline");
const VectorKernels* const internal::kBaselineVectorKernels = &kKernels;

}  // namespace reprise
