// The builder of attention/work_map_builder.h by one CTA: a thread a row, then a thread a query
// range, in rounds of the CTA's threads where there are more.
//
// Bound: latency. Two or three scans, each a few loads, shuffles for the sums and a barrier; the
// ranges stay in shared memory while they fit. About 2 us for 64 rows, 4 us for 256.

#include <cuda_runtime.h>

#include <climits>
#include <cstdint>

#include "attention/kernels/work_map_kernel.h"
#include "attention/work_map_builder.h"
#include "attention/work_map_scratch.h"

namespace reprise {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / 32;
// What a CTA may have without asking, less the static part.
constexpr int64_t kMaxSharedScratch = 47 * 1024;

struct ScanMemory {
  int warp_least[kMaxWarps];
  int64_t warp_sums[2][kMaxWarps];  // of alternate rounds, so that one barrier a round is enough
};

class CtaTeam {
 public:
  __device__ explicit CtaTeam(ScanMemory& memory) : memory_(memory) {}

  template <typename Body>
  REPRISE_HOST_DEVICE void ForEach(int n, Body body) {
#if defined(__CUDA_ARCH__)
    for (int i = threadIdx.x; i < n; i += blockDim.x) body(i);
#endif
  }

  template <typename Value>
  REPRISE_HOST_DEVICE int Least(int n, Value value) {
    int least = INT_MAX;
#if defined(__CUDA_ARCH__)
    for (int i = threadIdx.x; i < n; i += blockDim.x) least = min(least, value(i));
    least = __reduce_min_sync(~0u, least);
    if (threadIdx.x % 32 == 0) memory_.warp_least[threadIdx.x / 32] = least;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    const int num_warps = blockDim.x / 32;
    least = __reduce_min_sync(~0u, lane < num_warps ? memory_.warp_least[lane] : INT_MAX);
    __syncthreads();
#endif
    return least;
  }

  template <typename Count, typename Use>
  REPRISE_HOST_DEVICE int64_t Scan(int n, Count count, Use use) {
    int64_t carry = 0;
#if defined(__CUDA_ARCH__)
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    for (int round = 0; round < n; round += blockDim.x) {
      const int i = round + threadIdx.x;
      const int64_t value = i < n ? count(i) : 0;
      const int64_t in_warp = InclusiveSum(value, lane);
      int64_t* sums = memory_.warp_sums[parity_];
      parity_ ^= 1;
      if (lane == 31) sums[warp] = in_warp;
      __syncthreads();
      const int num_warps = blockDim.x / 32;
      const int64_t warps = InclusiveSum(lane < num_warps ? sums[lane] : 0, lane);
      const int64_t before = warp == 0 ? 0 : __shfl_sync(~0u, warps, warp - 1);
      if (i < n) use(i, carry + before + in_warp - value, value);
      carry += __shfl_sync(~0u, warps, 31);
    }
    __syncthreads();
#endif
    return carry;
  }

 private:
  __device__ static int64_t InclusiveSum(int64_t value, int lane) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int64_t other = __shfl_up_sync(~0u, value, distance);
      if (lane >= distance) value += other;
    }
    return value;
  }

  ScanMemory& memory_;
  int parity_ = 0;
};

template <typename Cutter>
__global__ void __launch_bounds__(kMaxThreads)
    WorkMapKernel(const WorkMapRows rows, const WorkMap map, const int use_shared_scratch) {
  __shared__ ScanMemory scan_memory;
  extern __shared__ __align__(16) unsigned char shared_scratch[];
  CtaTeam team(scan_memory);
  void* scratch = use_shared_scratch ? static_cast<void*>(shared_scratch) : map.scratch;
  WorkMapBuilder<CtaTeam, Cutter>(team, rows, map, WorkMapScratch::At(scratch, map.max_tiles))
      .Run();
}

}  // namespace

cudaError_t LaunchWorkMapKernel(const WorkMapRows& rows, const WorkMap& map, cudaStream_t stream) {
  const int64_t scratch_bytes = WorkMapScratch::Bytes(map.max_tiles, map.max_rows);
  const bool shared = scratch_bytes <= kMaxSharedScratch;
  const int wanted = map.max_items > map.max_rows ? map.max_items : map.max_rows;
  const int threads = wanted <= 128 ? 128 : wanted <= 256 ? 256 : wanted <= 512 ? 512 : kMaxThreads;
  const auto kernel = map.mode == WorkMapMode::kDeterministic ? &WorkMapKernel<DeterministicCut>
                                                              : &WorkMapKernel<BalancedCut>;
  kernel<<<1, threads, shared ? scratch_bytes : 0, stream>>>(rows, map, shared);
  return cudaGetLastError();
}

}  // namespace reprise
