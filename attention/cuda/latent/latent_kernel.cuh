// Absorbed MLA on Hopper: tier 2, for tiles of 64 rows of q against one latent head of 16 bits,
// loaded unconverted, whose first columns are the values.
//
// Algorithm. That of attention_kernel.cuh, over the same items. 64 x 512 columns of out in float32
// are half of a multiprocessor's registers, so two warpgroups hold them, 256 columns each, and the
// others use what is left. Of four warpgroups,
//   one copies     keys and queries, as far ahead as there is room       latent_loader.cuh
//   one scores     S = Q K^T, masks, online softmax: P                   latent_weights.cuh
//   two add up     out = out * rescale + P V, each half the columns      latent_sums.cuh
// and they synchronise only through the barriers of rings of stages (warpgroup_barrier.cuh).
// Queries take 72 KB of shared memory and each of two stages of 64 keys takes 72 KB, so P replaces
// the last 64 dims of its step's keys, which are not values. The weights of one step are used in
// sums while the next step is multiplied with the queries. To keep the tensor cores busy while the
// weights of that step are computed, the second of the two that add up waits until its products are
// complete, if its keys have arrived. (DeepSeek's FlashMLA gives the two warpgroups the weights of
// alternate steps, instead of a third warpgroup: "A Deep-Dive Into the New Flash MLA Kernel",
// 2025.)
//
// Results are written, and partials merged, while the next unit is in progress, because only the
// warpgroups that add up need them.
//
// Bound. Tensor cores, 2 x rows x keys x (576 + 512) FLOP: 2,176 cycles per step. Two limits are
// close to it: shared memory, of which products read 224 KB per step at 128 bytes per cycle, in
// addition to the 72 KB that are copied into it; and the L2 cache, from which each multiprocessor
// reads 72 KB per step, because two tiles of a token's 128 heads read the same keys on two
// multiprocessors. Measured: docs/performance.md.
//
// Masks are as in warpgroup_kernel.cuh: what a row sees is usually an interval of the keys; in
// special units, keys that no row of the tile sees are zeroed after they are multiplied with the
// queries, so memory that no query sees may hold NaN.

#ifndef REPRISE_ATTENTION_CUDA_LATENT_LATENT_KERNEL_CUH_
#define REPRISE_ATTENTION_CUDA_LATENT_LATENT_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/cuda/latent/latent_loader.cuh"
#include "reprise/attention/cuda/latent/latent_shared.cuh"
#include "reprise/attention/cuda/latent/latent_sums.cuh"
#include "reprise/attention/cuda/latent/latent_traits.cuh"
#include "reprise/attention/cuda/latent/latent_weights.cuh"
#include "reprise/base/dependent_launch.cuh"

namespace reprise {

template <typename Traits>
__global__ void __launch_bounds__(Traits::kCtaThreads, 1)
    LatentKernel(const __grid_constant__ AttentionKernelParams p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<LatentShared<Traits>*>(shared_memory);
  if (threadIdx.x == 0) {
    constexpr int kSummers = kArrivalsOfWarp * (Traits::kThreads / 32);
    constexpr int kLoaders = LatentLoader<Traits>::kArrivals;
    constexpr int kWeighers = LatentWeights<Traits>::kArrivals;
    shared.unit_ring.Init(kLoaders, kWeighers + kSummers);
    shared.queries.Init(kLoaders, kWeighers);
    shared.keys.Init(kLoaders, kSummers / Traits::kParts);
    shared.logits.Init(kWeighers, 1);
    shared.weights.Init(kWeighers, 1);
    for (Barrier& barrier : shared.results_are_out) barrier.Init(Traits::kThreads);
  }
  if (threadIdx.x < Traits::kKeys / 32) shared.seen[threadIdx.x] = 0;
  __syncthreads();
  LetNextKernelIn();
  AwaitKernelBefore();
  if (threadIdx.x >= Traits::kThreads + Traits::kWeigherThreads) {
    ReduceRegisters<Traits::kLoaderRegisters>();
    LatentLoader<Traits>(p, shared).Load();
  } else if (threadIdx.x >= Traits::kThreads) {
    RaiseRegisters<Traits::kWeigherRegisters>();
    WeighUnits<Traits>(p, shared);
  } else {
    RaiseRegisters<Traits::kRegisters>();
    AddUpUnits<Traits>(p, shared);
  }
}

template <int kKernel>
cudaError_t LaunchLatentAttention(const AttentionKernelParams& params, cudaStream_t stream) {
  static_assert(kAttentionKernels[kKernel].family == KernelFamily::kLatent);
  using Traits = LatentTraits<kAttentionKernels[kKernel].tile.dtype>;
  constexpr int kSharedBytes = sizeof(LatentShared<Traits>);
  static_assert(kSharedBytes <= kAttentionKernels[kKernel].shared_bytes());
  const auto kernel = &LatentKernel<Traits>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, params.work.num_ctas, Traits::kCtaThreads, kSharedBytes, stream,
                         params);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_LATENT_LATENT_KERNEL_CUH_
