// Empty in builds without CUDA.
#ifdef REPRISE_WITH_CUDA

#include "reprise/attention/cuda/kernel_launch.h"

#include <array>
#include <cstddef>
#include <utility>

#include "reprise/attention/cuda/general/attention_launchers.h"

namespace reprise {
namespace {

using Launcher = cudaError_t (*)(const AttentionKernelParams&, cudaStream_t);

template <int kKernel>
constexpr Launcher LauncherOf() {
  constexpr KernelFamily kFamily = kAttentionKernels[kKernel].family;
  if constexpr (kFamily == KernelFamily::kGeneral) {
    return &LaunchGeneralAttention<kKernel>;
  } else if constexpr (kFamily == KernelFamily::kDecode) {
    return &LaunchDecodeAttention<kKernel>;
  } else if constexpr (kFamily == KernelFamily::kWarpgroup) {
    return &LaunchWarpgroupAttention<kKernel>;
  } else {
    return &LaunchMlaAttention<kKernel>;
  }
}

template <size_t... kKernels>
constexpr std::array<Launcher, sizeof...(kKernels)> Launchers(std::index_sequence<kKernels...>) {
  return {LauncherOf<kKernels>()...};
}

constexpr auto kLaunchers = Launchers(std::make_index_sequence<kAttentionKernels.size()>());

}  // namespace

cudaError_t LaunchAttentionKernel(const AttentionKernelEntry& kernel,
                                  const AttentionKernelParams& params, cudaStream_t stream) {
  return kLaunchers[&kernel - kAttentionKernels.data()](params, stream);
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
