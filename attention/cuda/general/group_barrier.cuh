// Barrier of the warps that share a KV tile (a warp group).

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_GROUP_BARRIER_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_GROUP_BARRIER_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/device_primitives.cuh"

namespace reprise {

// Whether a CTA has several warp groups of several warps. Each such group needs a separate barrier.
template <typename Traits>
inline constexpr bool kHasGroupBarriers = Traits::kGroupWarps > 1 && Traits::kWarpsN > 1;

#ifdef REPRISE_EVERY_LANE_ARRIVES

// mbarriers instead of bar.sync, for builds with --config=racecheck. After some warps of a CTA have
// synchronised by bar.sync, compute-sanitizer's racecheck reports accesses that __syncthreads()
// separates. An mbarrier takes a few cycles more.
__device__ __forceinline__ uint64_t* GroupBarriers() {
  __shared__ uint64_t barriers[8];  // one per group
  return barriers;
}

// Called once, by all threads of the CTA, before SyncGroup().
template <typename Traits>
__device__ __forceinline__ void PrepareToSync() {
  if constexpr (kHasGroupBarriers<Traits>) {
    if (threadIdx.x < Traits::kWarpsN) {
      asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(
                       SharedAddress(GroupBarriers() + threadIdx.x)),
                   "r"(Traits::kGroupThreads)
                   : "memory");
    }
    __syncthreads();
  }
}

template <typename Traits>
__device__ __forceinline__ void SyncAtGroupBarrier() {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      ".reg .b64 state;\n"
      "mbarrier.arrive.shared.b64 state, [%0];\n"
      "again_%=:\n"
      "mbarrier.test_wait.shared.b64 done, [%0], state;\n"
      "@!done bra again_%=;\n"
      "}\n" ::"r"(SharedAddress(GroupBarriers() + threadIdx.x / Traits::kGroupThreads))
      : "memory");
}

#else

template <typename Traits>
__device__ __forceinline__ void PrepareToSync() {}

// Uses named barrier 1 + group index; __syncthreads() uses barrier 0.
template <typename Traits>
__device__ __forceinline__ void SyncAtGroupBarrier() {
  NamedBarrierSync(1 + static_cast<int>(threadIdx.x) / Traits::kGroupThreads,
                   Traits::kGroupThreads);
}

#endif

// Synchronises the warps that share a KV tile.
template <typename Traits>
__device__ __forceinline__ void SyncGroup() {
  if constexpr (Traits::kGroupWarps == 1) {
    __syncwarp();
  } else if constexpr (kHasGroupBarriers<Traits>) {
    SyncAtGroupBarrier<Traits>();
  } else {
    __syncthreads();
  }
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_GROUP_BARRIER_CUH_
