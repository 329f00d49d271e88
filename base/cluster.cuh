// Clusters of CTAs: the shared memory of one is the others' to read and write. Compute capability
// 9.0; in a launch without clusters each CTA is a cluster of its own.
//
//   __shared__ float mine;
//   ...                                    // write mine
//   ArriveAtCluster();                     // all threads of all CTAs of the cluster
//   AwaitCluster();
//   float theirs = LoadInCluster(ClusterAddress(SharedAddress(&mine), rank));
//   ...                                    // use theirs
//   ArriveAfterReads();
//   ...                                    // anything that does not write `mine`
//   AwaitCluster();                        // no CTA may end while others read its memory

#ifndef REPRISE_BASE_CLUSTER_CUH_
#define REPRISE_BASE_CLUSTER_CUH_

#include <cstdint>

namespace reprise {

// CTAs of the cluster. 1 on older devices.
__device__ __forceinline__ uint32_t ClusterSize() {
  uint32_t size = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
  return size;
}

// Of this CTA, from 0. CTAs of a cluster along one dimension of the grid are in its order.
__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

// The same place in the shared memory of the CTA with this rank. `address`: of shared memory.
__device__ __forceinline__ uint32_t ClusterAddress(uint32_t address, uint32_t rank) {
  uint32_t there = address;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
#endif
  return there;
}

__device__ __forceinline__ float LoadInCluster(uint32_t cluster_address) {
  float value = 0.0f;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(cluster_address) : "memory");
#endif
  return value;
}

// REQUIRES: aligned to 16 bytes.
__device__ __forceinline__ float4 Load4InCluster(uint32_t cluster_address) {
  float4 value = {};
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(cluster_address)
               : "memory");
#endif
  return value;
}

// All threads of the cluster arrive, and later wait for all to have arrived. What they wrote before
// is visible then.
__device__ __forceinline__ void ArriveAtCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// Arrives without making writes visible, for which ArriveAtCluster() would wait: when what was read
// of other CTAs' memory has been used.
__device__ __forceinline__ void ArriveAfterReads() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void AwaitCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

}  // namespace reprise

#endif  // REPRISE_BASE_CLUSTER_CUH_
