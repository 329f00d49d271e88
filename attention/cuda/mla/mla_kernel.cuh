// The tier 2 kernel for absorbed MLA on Hopper: tiles of 64 query rows against one KV head of
// latent vectors, 16-bit and loaded unconverted. The first columns of the keys are the values.
//
// Algorithm. The algorithm of attention_kernel.cuh over the same items. 64 x 512 accumulators of
// out in float32 take half of an SM's registers. Two warpgroups hold them, 256 columns each, and
// two more warpgroups use the other registers:
//   producer           copies keys and queries, ahead if stages are empty   mla_loader.cuh
//   softmax            S = Q K^T, masks, online softmax: P                  mla_weights.cuh
//   accumulation (2)   out = out * rescale + P V, half of the columns each  mla_sums.cuh
//
// Queries take 72 KB of shared memory, and each of two stages of 64 keys takes 72 KB. P therefore
// overwrites the last 64 dims of its KV tile's keys, which are not values. The warpgroups
// synchronise only through the barriers of rings of stages (warpgroup_barrier.cuh). The protocol of
// KV tile i:
// 1. The producer waits at the empty barrier of each of the two parts of the stage, copies the
//    part, and arrives at its full barrier.
// 2. The softmax warpgroup waits at the full barrier of each part and computes S. When S is
//    complete, it arrives at the full barrier of the logits. It computes P(i), waits at its named
//    barrier until none of its warps reads the keys, writes P(i) and the rescale factors, issues a
//    proxy fence, and arrives at the full barrier of the weights.
// 3. The accumulation warpgroups wait at the full barrier of the weights, rescale out and add P(i)
//    V. Meanwhile the softmax warpgroup computes S of KV tile i + 1.
// 4. Each accumulation warpgroup arrives at the empty barrier of its part. The producer refills
//    part 0 first, so P(i), which is in part 1, is not overwritten while either warpgroup reads it.
//
// In step 3 the second accumulation warpgroup first waits for the logits of the unit's KV tile i +
// 1, if its keys have arrived. This keeps the tensor cores busy while the softmax warpgroup
// computes P(i + 1). (DeepSeek's FlashMLA has no separate softmax warpgroup: its two warpgroups
// compute the weights of alternate KV tiles. "A Deep-Dive Into the New Flash MLA Kernel", 2025.)
//
// The accumulation warpgroups write results and combine partials while the other warpgroups process
// the next unit, unless the results go through the memory of the keys (WritesDirectly()).
//
// Bound. Tensor cores, 2 x rows x keys x (576 + 512) FLOP: 2,176 cycles per KV tile. Two other
// limits are close. MMAs read 224 KB of shared memory per KV tile at 128 bytes per cycle, in
// addition to 72 KB of copies into it. Each SM reads 72 KB per KV tile from the L2 cache: the two
// tiles of a token's 128 heads read the same keys on two SMs. Measured: docs/performance.md.
//
// Masks are as in warpgroup_kernel.cuh: a row usually sees an interval of the keys. In special
// units, values of keys that no row of the tile sees are zeroed after Q K^T, so memory that no
// query sees may hold NaN.

#ifndef REPRISE_ATTENTION_CUDA_MLA_MLA_KERNEL_CUH_
#define REPRISE_ATTENTION_CUDA_MLA_MLA_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/cuda/mla/mla_loader.cuh"
#include "reprise/attention/cuda/mla/mla_shared.cuh"
#include "reprise/attention/cuda/mla/mla_sums.cuh"
#include "reprise/attention/cuda/mla/mla_traits.cuh"
#include "reprise/attention/cuda/mla/mla_weights.cuh"
#include "reprise/base/dependent_launch.cuh"

namespace reprise {

template <typename Traits>
__global__ void __launch_bounds__(Traits::kCtaThreads, 1)
    MlaKernel(const __grid_constant__ AttentionKernelParams p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<MlaShared<Traits>*>(shared_memory);
  if (threadIdx.x == 0) {
    constexpr int kSummers = kArrivalsOfWarp * (Traits::kThreads / 32);
    constexpr int kLoaders = MlaLoader<Traits>::kArrivals;
    constexpr int kWeighers = MlaSoftmaxWeights<Traits>::kArrivals;
    shared.unit_ring.Init(kLoaders, kWeighers + kSummers);
    shared.queries.Init(kLoaders, kWeighers);
    shared.keys.Init(kLoaders, kSummers / Traits::kParts);
    shared.logits.Init(kWeighers, 1);
    shared.weights.Init(kWeighers, 1);
    for (Barrier& barrier : shared.results_are_out) barrier.Init(Traits::kThreads);
  }
  if (threadIdx.x < Traits::kKeys / 32) shared.seen[threadIdx.x] = 0;
  __syncthreads();
  TriggerDependents();
  GridDependencySync();
  if (threadIdx.x >= Traits::kThreads + Traits::kWeigherThreads) {
    RegDealloc<Traits::kLoaderRegisters>();
    MlaLoader<Traits>(p, shared).Load();
  } else if (threadIdx.x >= Traits::kThreads) {
    RegAlloc<Traits::kWeigherRegisters>();
    WeighUnits<Traits>(p, shared);
  } else {
    RegAlloc<Traits::kRegisters>();
    AddUpUnits<Traits>(p, shared);
  }
}

template <int kKernel>
cudaError_t LaunchMlaAttention(const AttentionKernelParams& params, cudaStream_t stream) {
  static_assert(kAttentionKernels[kKernel].family == KernelFamily::kMla);
  using Traits = MlaTraits<kAttentionKernels[kKernel].tile.dtype>;
  constexpr int kSharedBytes = sizeof(MlaShared<Traits>);
  static_assert(kSharedBytes <= kAttentionKernels[kKernel].shared_bytes());
  const auto kernel = &MlaKernel<Traits>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, params.work.num_ctas, Traits::kCtaThreads, kSharedBytes, stream,
                         params);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_MLA_MLA_KERNEL_CUH_
