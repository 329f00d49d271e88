#include "reprise/attention/cpu/vector_kernels.h"

#include <array>

namespace reprise {
namespace {

#if defined(__x86_64__)
bool RunsAvx2() {
  // Every processor with AVX2 also has F16C.
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool RunsAvx512() {
  return RunsAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
#else
bool RunsAvx2() { return false; }
bool RunsAvx512() { return false; }
#endif

struct SupportedKernels {
  std::array<const VectorKernels*, 3> kernels;
  int count = 0;

  SupportedKernels() {
    Add(internal::kBaselineVectorKernels);
    if (RunsAvx2()) Add(internal::kAvx2VectorKernels);
    if (RunsAvx512()) Add(internal::kAvx512VectorKernels);
  }
  void Add(const VectorKernels* compiled) {
    if (compiled) kernels[count++] = compiled;
  }
};

}  // namespace

absl::Span<const VectorKernels* const> SupportedVectorKernels() {
  static const SupportedKernels supported;
  return absl::MakeConstSpan(supported.kernels.data(), supported.count);
}

const VectorKernels& BestVectorKernels() { return *SupportedVectorKernels().back(); }

}  // namespace reprise
