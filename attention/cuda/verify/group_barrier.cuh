// The barrier of groups of several warps, where a CTA has several groups. Included before
// attention/cuda/general/attention_kernel.cuh, whose MeetGroup() has one for a single group only.

#ifndef REPRISE_ATTENTION_CUDA_VERIFY_GROUP_BARRIER_CUH_
#define REPRISE_ATTENTION_CUDA_VERIFY_GROUP_BARRIER_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/device_primitives.cuh"

namespace reprise {

#ifdef REPRISE_EVERY_LANE_ARRIVES

// As below, but by barriers in shared memory (mbarrier): once parts of a CTA have met by bar.sync,
// racecheck of compute-sanitizer reports accesses that __syncthreads() separates. For builds for it
// (--config=racecheck); they take a few cycles more.
__device__ __forceinline__ uint64_t* GroupBarriers() {
  __shared__ uint64_t barriers[8];  // of a group each
  return barriers;
}

template <typename Traits>
requires(Traits::kGroupWarps > 1 && Traits::kWarpsN > 1) __device__ __forceinline__
    void PrepareToMeet() {
  if (threadIdx.x < Traits::kWarpsN) {
    asm volatile(
        "mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(SharedAddress(GroupBarriers() + threadIdx.x)),
        "r"(Traits::kGroupThreads)
        : "memory");
  }
  __syncthreads();
}

template <typename Traits>
requires(Traits::kGroupWarps > 1 && Traits::kWarpsN > 1) __device__ __forceinline__
    void MeetGroup() {
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

// Synchronises the warps that share a step of keys. Barrier 0 is that of the CTA.
template <typename Traits>
requires(Traits::kGroupWarps > 1 && Traits::kWarpsN > 1) __device__ __forceinline__
    void MeetGroup() {
  MeetAt(1 + static_cast<int>(threadIdx.x) / Traits::kGroupThreads, Traits::kGroupThreads);
}

#endif

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_VERIFY_GROUP_BARRIER_CUH_
