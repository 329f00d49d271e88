// Prefix sums over the threads of a CTA, for builders that are one CTA.

#ifndef ATTENTION_CTA_SCAN_CUH_
#define ATTENTION_CTA_SCAN_CUH_

#include <cstdint>

namespace reprise {

// Static shared memory of a CTA of up to 1024 threads.
struct CtaScanMemory {
  int32_t warp_sums[32];
};

struct CtaSum {
  int32_t before;  // of the threads before this one
  int32_t total;
};

// Called by all threads together, a multiple of 32; has barriers, the first one before any write to
// `memory`, so that it may be called again and again.
__device__ inline CtaSum ExclusiveSum(int32_t value, CtaScanMemory& memory) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  int32_t in_warp = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int32_t other = __shfl_up_sync(~0u, in_warp, distance);
    if (lane >= distance) in_warp += other;
  }
  __syncthreads();
  if (lane == 31) memory.warp_sums[warp] = in_warp;
  __syncthreads();
  const int num_warps = blockDim.x / 32;
  int32_t warps = lane < num_warps ? memory.warp_sums[lane] : 0;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int32_t other = __shfl_up_sync(~0u, warps, distance);
    if (lane >= distance) warps += other;
  }
  const int32_t before_warp = __shfl_sync(~0u, warps, warp == 0 ? 0 : warp - 1);
  return {(warp == 0 ? 0 : before_warp) + in_warp - value, __shfl_sync(~0u, warps, 31)};
}

}  // namespace reprise

#endif  // ATTENTION_CTA_SCAN_CUH_
