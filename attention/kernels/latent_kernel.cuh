// Absorbed MLA on Hopper: tier 2, for tiles of 64 rows of q against one latent head of 16 bits,
// whose first columns are the values, loaded as it is.
//
// Algorithm. That of attention_kernel.cuh, over the same items. 64 x 512 columns of out in float32
// are half of a multiprocessor's registers, so two warpgroups have them, 256 columns each, and the
// others have what is left: of four warpgroups
//   one copies     keys and queries, as far ahead as there is room       latent_loader.cuh
//   one weighs     S = Q K^T, masks, online softmax: P                   latent_weights.cuh
//   two add up     out = out * rescale + P V, each half the columns      latent_sums.cuh
// and they meet at barriers of rings of stages alone (warpgroup_barrier.cuh). Queries take 72 KB of
// shared memory and each of two stages of 64 keys 72 KB; there is no room for P but where the last
// 64 dims of its step's keys were, which are no values. What is weighed is added up while the next
// step is multiplied with the queries; and so that the tensor cores have something to do while that
// one is weighed, the second of the two that add up waits until its products are done, if its keys
// are there. (DeepSeek's FlashMLA gives the two warpgroups alternate steps to weigh, in the place
// of a third: "A Deep-Dive Into the New Flash MLA Kernel", 2025.)
//
// Results are written, and partials merged, while the next unit is under way, as those who add up
// are the only ones who need to know of them.
//
// Bound. Tensor cores, 2 x rows x keys x (576 + 512) FLOP: 2,176 cycles a step. Near it shared
// memory, of which products read 224 KB a step at 128 bytes a cycle, beside 72 KB that are copied
// to it; and the L2 cache, from which each multiprocessor has 72 KB a step, as two tiles of a
// token's 128 heads read the same keys on two of them. Measured: docs/performance.md.
//
// Masks are as in warpgroup_kernel.cuh: what a row sees is mostly an interval of the keys; in
// special units keys that no row of the tile sees are zeroed once they are multiplied with the
// queries, so that memory which no query sees may hold NaN.

#ifndef ATTENTION_KERNELS_LATENT_KERNEL_CUH_
#define ATTENTION_KERNELS_LATENT_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/kernels/latent_launcher.h"
#include "attention/kernels/latent_loader.cuh"
#include "attention/kernels/latent_shared.cuh"
#include "attention/kernels/latent_sums.cuh"
#include "attention/kernels/latent_traits.cuh"
#include "attention/kernels/latent_weights.cuh"
#include "base/dependent_launch.cuh"

namespace reprise {

template <typename Traits>
__global__ void __launch_bounds__(Traits::kCtaThreads, 1)
    LatentKernel(const __grid_constant__ AttentionKernelParams p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<LatentShared<Traits>*>(shared_memory);
  if (threadIdx.x == 0) {
    constexpr int kSumWarps = Traits::kThreads / 32;
    constexpr int kLoaders = LatentLoader<Traits>::kArrivals;
    constexpr int kWeighers = LatentWeights<Traits>::kArrivals;
    shared.unit_ring.Init(kLoaders, kWeighers + kSumWarps);
    shared.queries.Init(kLoaders, kWeighers);
    shared.keys.Init(kLoaders, kSumWarps / Traits::kParts);
    shared.logits.Init(kWeighers, 1);
    shared.weights.Init(kWeighers, 1);
    for (Barrier& barrier : shared.results_are_out) barrier.Init(Traits::kThreads);
  }
  if (threadIdx.x < Traits::kKeys / 32) shared.seen[threadIdx.x] = 0;
  __syncthreads();
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

template <DType kDType>
int LatentSharedBytes() {
  return sizeof(LatentShared<LatentTraits<kDType>>);
}

template <DType kDType>
cudaError_t LaunchLatentAttention(const AttentionKernelParams& params, cudaStream_t stream) {
  using Traits = LatentTraits<kDType>;
  constexpr int kSharedBytes = sizeof(LatentShared<Traits>);
  static_assert(kSharedBytes <= 227 * 1024, "what a CTA may have on compute capability 9.0");
  const auto kernel = &LatentKernel<Traits>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, params.work.num_ctas, Traits::kCtaThreads, kSharedBytes, stream,
                         params);
}

}  // namespace reprise

#endif  // ATTENTION_KERNELS_LATENT_KERNEL_CUH_
