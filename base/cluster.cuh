// Access to the shared memory of other CTAs in a cluster. Needs compute capability 9.0. In a launch
// without clusters, each CTA is a cluster of size 1.
//
//   __shared__ float mine;
//   ...                                    // write mine
//   ArriveAtCluster();                     // all threads of all CTAs of the cluster
//   AwaitCluster();
//   float theirs = LoadInCluster(ClusterAddress(SharedAddress(&mine), rank));
//   ...                                    // use theirs
//   ArriveAfterReads();
//   ...                                    // any code that does not write `mine`
//   AwaitCluster();                        // a CTA must not end while other CTAs read its memory

#ifndef REPRISE_BASE_CLUSTER_CUH_
#define REPRISE_BASE_CLUSTER_CUH_

#include <cstdint>

namespace reprise {

// Number of CTAs in the cluster; 1 on older devices.
__device__ __forceinline__ uint32_t ClusterSize() {
  uint32_t size = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
  return size;
}

// Rank of this CTA in its cluster, from 0. In a cluster along one grid dimension, ranks follow the
// order of the grid.
__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

// Returns the address that corresponds to `address`, an address in shared memory, in the CTA with
// this rank.
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

// REQUIRES: cluster_address is a multiple of 16.
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

// Cluster barrier in two parts. All threads of the cluster arrive, and later wait until all threads
// have arrived. Earlier writes of all threads are visible after the wait.
__device__ __forceinline__ void ArriveAtCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// Arrives without publishing writes; ArriveAtCluster() would first wait for earlier writes. Use it
// after the values that were read from other CTAs have been used.
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
