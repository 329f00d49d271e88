// The device form of the builder (attention/tile_schedule/tile_schedule_builder.h): a few CTAs per
// schedule, with one thread per row, then one thread per Q tile. If there are more rows or Q tiles
// than threads, each CTA processes them in rounds. Every CTA processes all rows and Q tiles, which
// it holds in shared memory, and writes its part of the items. If they do not fit there, a single
// CTA per schedule holds them in global memory.
//
// Bound: latency, 2.2 us beyond the launch for one row and 2.4 us for 256 rows on an H200. A load
// from global memory takes 0.3 us of that; the rest are dependent instructions of about five cycles
// each. Each CTA loads each row once, and a round's loads are concurrent. Two scans (three, if rows
// may have several Q tiles) take a few shuffles and one barrier per round. Several SMs divide the
// writing of about 100 bytes per item.

#include <cuda_runtime.h>

#include <algorithm>
#include <climits>
#include <cstdint>

#include "absl/status/status.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_build_args.h"
#include "reprise/attention/tile_schedule/tile_schedule_builder.h"
#include "reprise/attention/tile_schedule/tile_schedule_cut.h"
#include "reprise/base/cuda_status.h"

namespace reprise {
namespace {

// The kernel's parameter. A TileSchedule has one or two KernelSchedules.
struct TileScheduleJob {
  TileScheduleRows rows = {};
  KernelSchedule schedules[2] = {};
  LaunchForm forms[2] = {};
  QueryLens lens[2] = {};
  TileScheduleSums sums[2] = {};  // set by LaunchKernel()
  int num_schedules = 0;
};

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxCtas = 8;  // per schedule
// Dynamic shared memory that a CTA may have on every card of compute capability 8.0 or later (the
// limit minus the static part), and the amount that needs no opt-in.
constexpr int64_t kMaxSharedScratch = 94 * 1024;
constexpr int64_t kFreeSharedScratch = 43 * 1024;

struct ScanMemory {
  // Even and odd rounds use different rows, here and in the next two arrays, so one barrier per
  // round suffices.
  int of_warps[2][kWarps];
  Tally tallies[2][kWarps];
  alignas(16) int64_t warp_sums[2][kWarps];
  // For each warp's slice: first the number of elements per bucket, then the rank of the bucket's
  // next element.
  alignas(16) uint16_t in_buckets[kWarps][kNumRankBuckets];
};
static_assert(sizeof(ScanMemory) <= 5 * 1024);
static_assert(kNumRankBuckets == kThreads, "a thread for each bucket");
static_assert(kMaxRanked <= UINT16_MAX);

class CtaTeam {
 public:
  __device__ explicit CtaTeam(ScanMemory& memory) : memory_(memory) {}

  template <typename Body>
  REPRISE_HOST_DEVICE void Fill(int n, Body body) {
#if defined(__CUDA_ARCH__)
    for (int i = threadIdx.x; i < n; i += kThreads) body(i);
#endif
  }

  // Adjacent lanes get adjacent indices, and CTAs get alternate groups of 32.
  template <typename Body>
  REPRISE_HOST_DEVICE void ForEach(int n, Body body) {
#if defined(__CUDA_ARCH__)
    ForEachOfWarp(threadIdx.x / 32, n, body);
#endif
  }

  // Starts with the last warp.
  template <typename Body>
  REPRISE_HOST_DEVICE void ForEachAside(int n, Body body) {
#if defined(__CUDA_ARCH__)
    ForEachOfWarp(kWarps - 1 - threadIdx.x / 32, n, body);
#endif
  }

  REPRISE_HOST_DEVICE void Sync() {
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
  }

  template <typename Value>
  REPRISE_HOST_DEVICE int Total(int n, Value value) {
    int total = 0;
#if defined(__CUDA_ARCH__)
    for (int i = threadIdx.x; i < n; i += kThreads) total += value(i);
    total = OfAllWarps(__reduce_add_sync(~0u, total), 0,
                       [](int of_warp) { return __reduce_add_sync(~0u, of_warp); });
#endif
    return total;
  }

  template <typename Value>
  REPRISE_HOST_DEVICE int Least(int n, Value value) {
    int least = INT_MAX;
#if defined(__CUDA_ARCH__)
    for (int i = threadIdx.x; i < n; i += kThreads) least = min(least, value(i));
    least = OfAllWarps(__reduce_min_sync(~0u, least), INT_MAX,
                       [](int of_warp) { return __reduce_min_sync(~0u, of_warp); });
#endif
    return least;
  }

  template <typename Value>
  REPRISE_HOST_DEVICE Tally TallyOf(int n, Value value) {
    Tally tally;
#if defined(__CUDA_ARCH__)
    for (int i = threadIdx.x; i < n; i += kThreads) {
      const Tally of_one = value(i);
      tally = {.total = tally.total + of_one.total,
               .most = max(tally.most, of_one.most),
               .last = max(tally.last, of_one.last)};
    }
    Tally* const of_warps = memory_.tallies[reduce_parity_];
    reduce_parity_ ^= 1;
    tally = OfWarp(tally);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = tally;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    tally = OfWarp(lane < kWarps ? of_warps[lane] : Tally{});
#endif
    return tally;
  }

  template <typename Count, typename Use>
  REPRISE_HOST_DEVICE auto Scan(int n, Count count, Use use) {
    using Sum = decltype(count(0));
    Sum carry = 0;
#if defined(__CUDA_ARCH__)
    const int warp = threadIdx.x / 32;
    for (int round = 0; round < n; round += kThreads) {
      const int i = round + threadIdx.x;
      const Sum value = i < n ? count(i) : 0;
      const Sum in_warp = InclusiveSum(value);
      Sum* const sums = reinterpret_cast<Sum*>(memory_.warp_sums[parity_]);
      parity_ ^= 1;
      if (threadIdx.x % 32 == 31) sums[warp] = in_warp;
      __syncthreads();
      Sum before = carry + in_warp - value;
#pragma unroll
      for (int w = 0; w < kWarps; w += 4) {
        const WarpSums<Sum> four = *reinterpret_cast<const WarpSums<Sum>*>(sums + w);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          before += w + j < warp ? four.of[j] : 0;
          carry += four.of[j];
        }
      }
      if (i < n) use(i, before);
    }
#endif
    return carry;
  }

  // A counting sort. Each warp has a slice of adjacent elements, and counts and ranks 32 of them
  // per iteration.
  template <typename BucketOf, typename Use>
  REPRISE_HOST_DEVICE void RankByBucket(int n, BucketOf bucket_of, Use use) {
#if defined(__CUDA_ARCH__)
    constexpr int kBytes = sizeof(memory_.in_buckets);
    static_assert(kBytes == kThreads * sizeof(uint4));
    reinterpret_cast<uint4*>(memory_.in_buckets)[threadIdx.x] = {};
    __syncthreads();
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int share = (n + kThreads - 1) / kThreads * 32;
    const int begin = warp * share;
    const int end = min(begin + share, n);
    uint16_t* const of_warp = memory_.in_buckets[warp];
    // Calls visit(i, entry of i's bucket + number of lower lanes with the same bucket), and adds
    // the number of lanes with the bucket to the entry.
    const auto for_each = [&](auto visit) {
      for (int first = begin; first < end; first += 32) {
        const int i = first + lane;
        const int bucket = i < end ? bucket_of(i) : -1;
        const uint32_t same = __match_any_sync(~0u, bucket);
        const uint32_t before = bucket >= 0 ? of_warp[bucket] : 0;
        __syncwarp();
        if (bucket >= 0) {
          const uint32_t lower_lanes = same & ((1u << lane) - 1);
          if (lower_lanes == 0) of_warp[bucket] = before + __popc(same);
          visit(i, before + __popc(lower_lanes));
        }
        __syncwarp();
      }
    };
    for_each([](int, int) {});
    __syncthreads();
    const auto of_all_warps = [&](int bucket) -> int {
      int count = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) count += memory_.in_buckets[w][bucket];
      return count;
    };
    Scan(kNumRankBuckets, of_all_warps, [&](int bucket, int before) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const int count = memory_.in_buckets[w][bucket];
        memory_.in_buckets[w][bucket] = before;
        before += count;
      }
    });
    __syncthreads();
    for_each(use);
#endif
  }

  // A thread processes the first kAlone indices of its span itself; the warp divides the rest.
  template <typename SpanOf, typename Body>
  REPRISE_HOST_DEVICE void Spread(int n, SpanOf span_of, Body body) {
#if defined(__CUDA_ARCH__)
    constexpr int kAlone = 8;
    const int lane = threadIdx.x % 32;
    for (int first = threadIdx.x - lane; first < n; first += kThreads) {
      const int i = first + lane;
      const ItemSpan span = i < n ? span_of(i) : ItemSpan{0, 0};
#pragma unroll
      for (int k = 0; k < kAlone; ++k) {
        if (k < span.count) body(i, span.begin + k);
      }
      for (uint32_t longer = __ballot_sync(~0u, span.count > kAlone); longer != 0;
           longer &= longer - 1) {
        const int other = __ffs(longer) - 1;
        const int begin = __shfl_sync(~0u, span.begin, other);
        const int count = __shfl_sync(~0u, span.count, other);
        for (int k = kAlone + lane; k < count; k += 32) body(first + other, begin + k);
      }
    }
#endif
  }

 private:
  template <typename Sum>
  struct alignas(16) WarpSums {
    Sum of[4];
  };

  __device__ static Tally OfWarp(const Tally& of_lane) {
    return {.total = __reduce_add_sync(~0u, of_lane.total),
            .most = __reduce_max_sync(~0u, of_lane.most),
            .last = __reduce_max_sync(~0u, of_lane.last)};
  }

  // Reduces one value per warp with `reduce`; `nothing` is its neutral element.
  template <typename Reduce>
  __device__ int OfAllWarps(int of_warp, int nothing, Reduce reduce) {
    int* const of_warps = memory_.of_warps[reduce_parity_];
    reduce_parity_ ^= 1;
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    return reduce(lane < kWarps ? of_warps[lane] : nothing);
  }

  template <typename Body>
  __device__ static void ForEachOfWarp(int warp, int n, Body body) {
    const int first = (warp * gridDim.x + blockIdx.x) * 32 + threadIdx.x % 32;
    for (int i = first; i < n; i += gridDim.x * kThreads) body(i);
  }

  __device__ static int32_t InclusiveSum(int32_t value) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      // The shuffle's predicate is false if there is no lane at this distance.
      asm volatile(
          "{\n"
          ".reg .s32 other;\n"
          ".reg .pred is_there;\n"
          "shfl.sync.up.b32 other|is_there, %0, %1, 0, 0xffffffff;\n"
          "@is_there add.s32 %0, %0, other;\n"
          "}\n"
          : "+r"(value)
          : "r"(distance));
    }
    return value;
  }

  __device__ static int64_t InclusiveSum(int64_t value) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int64_t other = __shfl_up_sync(~0u, value, distance);
      if (lane >= distance) value += other;
    }
    return value;
  }

  ScanMemory& memory_;
  int parity_ = 0;
  int reduce_parity_ = 0;
};

enum class Rows {
  kPlain,  // no positions, tails, ranks or shared prefix: less code
  kAny,
};

enum class Scratch { kShared, kGlobal };

template <typename Cutter, typename Sum, Rows kRows, Scratch kScratch>
__device__ __forceinline__ void Build(const TileScheduleJob& job, int index,
                                      unsigned char* shared_scratch, ScanMemory& scan_memory) {
  TileScheduleRows rows = job.rows;
  KernelSchedule schedule = job.schedules[index];
  if constexpr (kRows == Rows::kPlain) {
    rows.query_positions = nullptr;
    rows.tail_len = nullptr;
    rows.tail_mask = nullptr;
    rows.key_positions = KeyPositions{};
    schedule.max_shared_tiles = 0;
  }
  void* const memory = kScratch == Scratch::kShared ? shared_scratch : schedule.scratch;
  CtaTeam team(scan_memory);
  TileScheduleBuilder<CtaTeam, Cutter, Sum>(team, rows, job.lens[index], job.sums[index], schedule,
                                            job.forms[index],
                                            TileScheduleScratch::At(memory, schedule))
      .Run();
}

template <typename Cutter, typename Sum, Rows kRows, Scratch kScratch>
__global__ void __launch_bounds__(kThreads)
    TileScheduleKernel(const __grid_constant__ TileScheduleJob job) {
  __shared__ ScanMemory scan_memory;
  extern __shared__ __align__(16) unsigned char shared_scratch[];
  if constexpr (kRows == Rows::kAny) {
    Build<Cutter, Sum, kRows, kScratch>(job, blockIdx.y, shared_scratch, scan_memory);
  } else if (blockIdx.y == 0) {
    // Two calls, so that the compiler knows the parameter addresses of each call.
    Build<Cutter, Sum, kRows, kScratch>(job, 0, shared_scratch, scan_memory);
  } else {
    Build<Cutter, Sum, kRows, kScratch>(job, 1, shared_scratch, scan_memory);
  }
  // Later kernels may read the schedule before they wait for the end of preceding kernels
  // (attention/cuda/general/first_keys.cuh).
  __threadfence();
}

template <typename Cutter, typename Sum>
auto ChooseKernel(bool is_plain, bool is_shared) {
  if (!is_shared) return &TileScheduleKernel<Cutter, Sum, Rows::kAny, Scratch::kGlobal>;
  return is_plain ? &TileScheduleKernel<Cutter, Sum, Rows::kPlain, Scratch::kShared>
                  : &TileScheduleKernel<Cutter, Sum, Rows::kAny, Scratch::kShared>;
}

template <typename Cutter>
auto ChooseKernel(bool is_narrow, bool is_plain, bool is_shared) {
  return is_narrow ? ChooseKernel<Cutter, int32_t>(is_plain, is_shared)
                   : ChooseKernel<Cutter, int64_t>(is_plain, is_shared);
}

cudaError_t LaunchKernel(TileScheduleJob job, cudaStream_t stream) {
  const TileScheduleRows& rows = job.rows;
  bool is_plain =
      rows.query_positions == nullptr && rows.tail_len == nullptr && rows.key_positions.world <= 1;
  bool is_narrow = true;
  int64_t scratch_bytes = 0;
  int max_items = 0;
  for (int i = 0; i < job.num_schedules; ++i) {
    const KernelSchedule& schedule = job.schedules[i];
    const TileScheduleSumsOf sums = SumsOf(schedule);
    job.sums[i] = sums.sums;
    is_narrow = is_narrow && sums.is_narrow;
    is_plain = is_plain && schedule.max_shared_tiles == 0;
    scratch_bytes = std::max(scratch_bytes, TileScheduleScratch::Bytes(schedule));
    max_items = std::max(max_items, schedule.max_items);
  }
  const bool is_shared = scratch_bytes <= kMaxSharedScratch;
  // Scratch in global memory supports only one CTA per schedule.
  const int ctas = is_shared ? std::clamp(max_items / 32, 1, kMaxCtas) : 1;
  const auto kernel = job.schedules[0].mode == TileScheduleMode::kDeterministic
                          ? ChooseKernel<DeterministicCut>(is_narrow, is_plain, is_shared)
                          : ChooseKernel<BalancedCut>(is_narrow, is_plain, is_shared);
  if (is_shared && scratch_bytes > kFreeSharedScratch) {
    // Always the maximum, because graphs of other plans may contain the same kernel.
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kMaxSharedScratch));
    if (error != cudaSuccess) return error;
  }
  kernel<<<dim3(ctas, job.num_schedules), kThreads, is_shared ? scratch_bytes : 0, stream>>>(job);
  return cudaGetLastError();
}

template <typename Batch>
absl::StatusOr<BatchSchedule> Launch(const Batch& batch, const LayerWindow& window,
                                     const TileSchedule& schedule, CUstream_st* stream) {
  if (absl::Status status = CheckTileScheduleCapacity(batch, schedule); !status.ok()) return status;
  const BatchSchedule work = WorkOf(batch, window, schedule);
  TileScheduleJob job = {.rows = RowsOf(batch, window)};
  for (const WorkPart& part : PartsOf(work)) {
    job.schedules[job.num_schedules] = part.schedule;
    job.forms[job.num_schedules] = part.form;
    job.lens[job.num_schedules++] = part.lens;
  }
  if (absl::Status status = CudaStatus(LaunchKernel(job, stream), "LaunchTileSchedule");
      !status.ok()) {
    return status;
  }
  return work;
}

}  // namespace

absl::StatusOr<BatchSchedule> LaunchTileSchedule(const PagedBatch& batch, const LayerWindow& window,
                                                 const TileSchedule& schedule,
                                                 CUstream_st* stream) {
  return Launch(batch, window, schedule, stream);
}

absl::StatusOr<BatchSchedule> LaunchTileSchedule(const RaggedBatch& batch,
                                                 const LayerWindow& window,
                                                 const TileSchedule& schedule,
                                                 CUstream_st* stream) {
  return Launch(batch, window, schedule, stream);
}

}  // namespace reprise
