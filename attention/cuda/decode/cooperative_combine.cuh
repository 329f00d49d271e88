// The cooperative combine: the CTAs that have the KV splits of a Q tile synchronise through global
// memory, and up to kMaxShares of them each add up the partials of a slice of the rows. If a single
// CTA combined the splits (attention/cuda/general/partial_combine.cuh), it would read 260 KB
// through one SM for 16 rows of head_dim 128 in 32 splits. Both ways produce bitwise identical
// results for up to kMaxSplitsAtOnce splits. For more splits, a single CTA would combine in two
// levels, whose results may differ in rounding.
//
// Bound: the latency of an atomic, a poll of the counter, and a read of the partials.

#ifndef REPRISE_ATTENTION_CUDA_DECODE_COOPERATIVE_COMBINE_CUH_
#define REPRISE_ATTENTION_CUDA_DECODE_COOPERATIVE_COMBINE_CUH_

#include <cstdint>

#include "reprise/attention/cuda/decode/cooperative_combine.h"
#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/partial_combine.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"

namespace reprise {

// Maximum number of polls before a CTA hands its slice over: about 150 us. Splits that have not
// arrived by then usually belong to CTAs that have not started.
inline constexpr int kMaxLooks = 256;

// The slices of a Q tile. Each slice has adjacent rows, a multiple of kRowsOfWarp except for the
// last slice.
template <typename Traits>
struct JointShares {
  __device__ __forceinline__ explicit JointShares(const WorkUnit& unit) {
    const int most = min(kMaxShares, unit.item.num_partials);
    const int even = (unit.num_rows + most - 1) / most;
    rows = (even + kRowsOfWarp<Traits> - 1) / kRowsOfWarp<Traits> * kRowsOfWarp<Traits>;
    count = (unit.num_rows + rows - 1) / rows;
  }

  int rows;  // rows per slice; the last slice may have fewer
  int count;
};

class MergeCounter {
 public:
  __device__ __forceinline__ explicit MergeCounter(uint32_t* counter) : counter_(counter) {}
  __device__ __forceinline__ uint32_t AddAndSynchronize(uint32_t value) const {
    return AddAcquireRelease(counter_, value);
  }
  __device__ __forceinline__ uint32_t Add(uint32_t value) const {
    return atomicAdd(counter_, value);
  }
  __device__ __forceinline__ uint32_t Look() const { return LoadAcquire(counter_); }

 private:
  uint32_t* counter_;
};

// The cooperative counterpart of ArriveAndCombine(). `waits`: whether the CTA may wait for other
// CTAs, up to kMaxLooks polls. Called by all threads, after the partial has been written. REQUIRES:
// unit.item.is_joint, and out has no block scales.
template <typename Traits>
__device__ __forceinline__ void ArriveAndCombineCooperatively(const AttentionKernelParams& p,
                                                              const WorkUnit& unit, bool waits,
                                                              AttentionShared<Traits>& shared) {
  const WorkItem& item = unit.item;
  const JointShares<Traits> shares(unit);
  uint32_t* const arrivals = ArrivalsAt(p, unit);
  JointArrival arrival = {};
  Traits::Sync();
  if (threadIdx.x == 0) {
    MergeCounter counter(arrivals);
    const int split = (item.partial - item.first_partial) / (item.query_end - item.query_begin);
    arrival = ArriveJointly(counter, item.num_partials, split < shares.count ? 1u << split : 0,
                            waits ? kMaxLooks : 0);
    shared.shares_to_merge = arrival.shares;
  }
  Traits::Sync();
  const CombinePoint point = {arrivals, 0, {0, 0, 0}, OwnPartials(p, item), -1};
#pragma unroll 1
  for (uint32_t mine = shared.shares_to_merge; mine != 0;) {
    // Each iteration combines a run of adjacent slices.
    const int first = __ffs(static_cast<int>(mine)) - 1;
    const int count = __ffs(static_cast<int>(~(mine >> first))) - 1;
    const RowRange rows = {first * shares.rows, min((first + count) * shares.rows, unit.num_rows)};
    PartialAdder<Traits, false>(p, unit, point, rows, shared).Run();
    mine &= ~(((1u << count) - 1) << first);
  }
  WaitForCopies<0>();  // empty groups
  if (threadIdx.x == 0 && IsLastToGo(arrival, item.num_partials)) *arrivals = 0;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_DECODE_COOPERATIVE_COMBINE_CUH_
