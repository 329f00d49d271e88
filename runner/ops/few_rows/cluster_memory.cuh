// Hopper's copies of boxes into shared memory, and barriers on which they and threads arrive.
// Addresses are of shared memory; "cluster" addresses (base/cluster.cuh) are of any CTA of the
// cluster. Compute capability 9.0.
//
// A barrier is 8 bytes, initialised by one thread with the number of arrivals that complete a
// phase. Its phases are counted by their parity: the first one is 0. Arrivals release, waits
// acquire, within the cluster.

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

// After the last InitBarrier() of a thread; then a barrier of the CTA, and of the cluster.
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void ArriveAt(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// At a barrier of any CTA of the cluster.
__device__ __forceinline__ void ArriveInCluster(uint32_t cluster_barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_barrier)
               : "memory");
}

// Arrives, and adds `bytes` of copies to what the phase waits for.
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

// Copies the box at (column, row) of a matrix, whose map describes it, to `to`; arrives with its
// bytes. What is beyond the matrix is zero. With kEvictFirst the lines are the first to leave the
// L2 cache.
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

// The same for a map with a third dimension: several boxes, one behind the other.
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

// The same for a map with five dimensions: boxes of pairs of 8 rows, of which the first ones are
// neighbours in memory, and the second ones; `pair`: the first of them. Evicted first.
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
