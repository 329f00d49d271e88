// Prefix sums over the threads of a CTA.

#ifndef REPRISE_BASE_CTA_SCAN_CUH_
#define REPRISE_BASE_CTA_SCAN_CUH_

#include <cstdint>

namespace reprise {

// Shared memory for ExclusiveSum() in a CTA of at most 1024 threads. T is int32_t or int64_t.
template <typename T>
struct CtaScanMemory {
  T warp_sums[32];
};

template <typename T>
struct CtaSum {
  T before;  // sum over the threads before this one
  T total;
};

template <typename T>
__device__ inline T InclusiveWarpSum(T value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const T other = __shfl_up_sync(~0u, value, distance);
    if (lane >= distance) value += other;
  }
  return value;
}

// Returns the sum over the preceding threads and the sum over all threads of the CTA. Called by all
// threads, a multiple of 32. The first barrier precedes any write to `memory`, so calls may follow
// each other.
template <typename T>
__device__ inline CtaSum<T> ExclusiveSum(T value, CtaScanMemory<T>& memory) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const T in_warp = InclusiveWarpSum(value);
  __syncthreads();
  if (lane == 31) memory.warp_sums[warp] = in_warp;
  __syncthreads();
  const int num_warps = blockDim.x / 32;
  const T warps = InclusiveWarpSum(lane < num_warps ? memory.warp_sums[lane] : T{0});
  const T before_warp = __shfl_sync(~0u, warps, warp == 0 ? 0 : warp - 1);
  return {(warp == 0 ? T{0} : before_warp) + in_warp - value, __shfl_sync(~0u, warps, 31)};
}

// Returns the last index i in [0, size) with first[i] <= value.
// REQUIRES: first is ascending, first[0] <= value.
template <typename T>
__device__ inline int LastNotAfter(const T* first, int size, T value) {
  int low = 0;
  int high = size - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first[middle] <= value) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace reprise

#endif  // REPRISE_BASE_CTA_SCAN_CUH_
