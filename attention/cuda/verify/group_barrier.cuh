// The barrier of groups of several warps, where a CTA has several groups. Included before
// attention/cuda/general/attention_kernel.cuh, whose MeetGroup() has one for a single group only.

#ifndef ATTENTION_CUDA_VERIFY_GROUP_BARRIER_CUH_
#define ATTENTION_CUDA_VERIFY_GROUP_BARRIER_CUH_

#include "attention/cuda/general/device_primitives.cuh"

namespace reprise {

// Synchronises the warps that share a step of keys. Barrier 0 is that of the CTA.
template <typename Traits>
requires(Traits::kGroupWarps > 1 && Traits::kWarpsN > 1) __device__ __forceinline__
    void MeetGroup() {
  MeetAt(1 + static_cast<int>(threadIdx.x) / Traits::kGroupThreads, Traits::kGroupThreads);
}

}  // namespace reprise

#endif  // ATTENTION_CUDA_VERIFY_GROUP_BARRIER_CUH_
