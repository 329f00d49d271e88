// Hopper's TMA copies of boxes into shared memory, and mbarriers at which copies and threads
// arrive. Addresses refer to shared memory; a "cluster" address (base/cluster.cuh) may refer to any
// CTA of the cluster. Requires compute capability 9.0.
//
// A barrier has 8 bytes. One thread initialises it with the number of arrivals that complete a
// phase. A phase is identified by its parity; the first phase has parity 0. Arrivals have release
// semantics: ArriveInCluster() within the cluster, the other functions within the CTA. Waits have
// acquire semantics within the cluster.

#ifndef REPRISE_RUNNER_OPS_FEW_ROWS_CLUSTER_MEMORY_CUH_
#define REPRISE_RUNNER_OPS_FEW_ROWS_CLUSTER_MEMORY_CUH_

#include <cuda.h>

#include <cstdint>

#include "reprise/base/cluster.cuh"

namespace reprise {

__device__ __forceinline__ uint32_t SharedAddressOf(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void StoreInCluster(uint32_t cluster_address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(cluster_address), "f"(value) : "memory");
}

__device__ __forceinline__ void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Call after the last InitBarrier() of a thread, and before a barrier of the CTA and of the
// cluster.
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void ArriveAt(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at a barrier of any CTA of the cluster.
__device__ __forceinline__ void ArriveInCluster(uint32_t cluster_barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_barrier)
               : "memory");
}

// Arrives, and makes the phase also wait for `bytes` of copies.
__device__ __forceinline__ void ArriveAndExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void AwaitPhase(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Copies the box at (column, row) of the matrix that `map` describes to `to`. The copied bytes
// complete at `barrier`. Elements beyond the matrix are zero. With kEvictFirst, the L2 cache evicts
// these lines first.
template <bool kEvictFirst>
__device__ __forceinline__ void CopyBox(uint32_t to, const CUtensorMap& map, int column, int row,
                                        uint32_t barrier, uint64_t evict_first) {
  if constexpr (kEvictFirst) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(column), "r"(row), "r"(barrier), "l"(evict_first)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
  }
}

// CopyBox() for a map with a third dimension: copies several boxes, stored one after the other.
template <bool kEvictFirst>
__device__ __forceinline__ void CopyBoxes(uint32_t to, const CUtensorMap& map, int first_box,
                                          int row, uint32_t barrier, uint64_t evict_first) {
  if constexpr (kEvictFirst) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(&map), "r"(0), "r"(row), "r"(first_box), "r"(barrier), "l"(evict_first)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(&map), "r"(0), "r"(row), "r"(first_box), "r"(barrier)
        : "memory");
  }
}

// CopyBox() for a map with five dimensions: copies boxes of pairs of 8 rows. The first members of
// the pairs are neighbours in memory, and so are the second members. `pair`: index of the first
// pair. The L2 cache evicts these lines first.
__device__ __forceinline__ void CopyPairedBoxes(uint32_t to, const CUtensorMap& map, int first_box,
                                                int pair, uint32_t barrier, uint64_t evict_first) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %2, %2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(0), "r"(pair), "r"(first_box), "r"(barrier), "l"(evict_first)
      : "memory");
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FEW_ROWS_CLUSTER_MEMORY_CUH_
