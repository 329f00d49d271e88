// The combine of KV splits: adds up the partials of a row's splits in key order. The order does not
// depend on which CTA arrives last, so results are bitwise identical from run to run.
//
// The last CTA to arrive performs the combine (decode/ has two other ways). A Q tile with more than
// kMaxSplitsAtOnce splits is combined in two levels (attention/tile_schedule/tile_schedule.h), so
// that several CTAs divide the work:
// 1. The last CTA to arrive at a group of kCombineGroup splits writes the group's sum over the
//    group's first partial.
// 2. The last group to arrive adds up the sums of the groups.
//
// Bound: the latency of the L2 cache, then 64 bytes per cycle and SM. The partials in flight
// (cp.async) are in the memory that held the keys, with up to 32 partials of a row at a time. Each
// thread adds up the 4 columns that it copied itself, so no thread waits for another's copies.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_PARTIAL_COMBINE_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_PARTIAL_COMBINE_CUH_

#include <cmath>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/online_softmax.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/unit_results.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/tile_schedule/tile_schedule.h"

namespace reprise {

// Partials of a tile's rows, in key order: partial n of a row is PartialAt(first, row) + n *
// stride.
struct PartialList {
  int first;
  int count;
  int64_t stride;
};

__device__ __forceinline__ int64_t SplitStride(const AttentionKernelParams& p,
                                               const WorkItem& item) {
  return static_cast<int64_t>(item.query_end - item.query_begin) * p.work.num_q_heads;
}

// The partials to combine for the queries of an item. The shared partials come first in key order.
__device__ __forceinline__ PartialList SharedPartials(const AttentionKernelParams& p,
                                                      const WorkItem& item) {
  return {item.first_shared_partial, item.num_shared_partials,
          static_cast<int64_t>(p.work.tile_queries) * p.work.num_q_heads};
}
__device__ __forceinline__ PartialList OwnPartials(const AttentionKernelParams& p,
                                                   const WorkItem& item) {
  return {item.first_partial, item.num_partials, SplitStride(p, item)};
}

// An arrival counter, and the combine that the last CTA to arrive performs.
struct CombinePoint {
  uint32_t* arrivals;
  uint32_t num_arrivals;
  PartialList shared;
  PartialList own;
  int to;  // the partial that the sum overwrites; -1: the sum goes to out
};

// A half-open range of a tile's rows.
struct RowRange {
  int begin;
  int end;
};

// The arrival counter of the splits and shared items of the item's queries. REQUIRES: the item has
// a combine entry.
__device__ __forceinline__ uint32_t* ArrivalsAt(const AttentionKernelParams& p,
                                                const WorkUnit& unit) {
  return p.work.arrivals + unit.item.merge * p.work.num_head_tiles + unit.head_tile;
}

// The combine of an item's queries: adds up its splits, or, in two levels, the sums of its groups
// of splits.
__device__ __forceinline__ CombinePoint WholeCombine(const AttentionKernelParams& p,
                                                     const WorkUnit& unit) {
  const WorkItem& item = unit.item;
  CombinePoint point;
  point.arrivals = ArrivalsAt(p, unit);
  point.shared = SharedPartials(p, item);
  point.own = OwnPartials(p, item);
  point.to = -1;
  if (item.num_partials > kMaxSplitsAtOnce) {
    point.own.count = (item.num_partials + kCombineGroup - 1) / kCombineGroup;
    point.own.stride *= kCombineGroup;
  }
  point.num_arrivals = point.shared.count + point.own.count;
  return point;
}

// The first-level combine of the item's group of splits. REQUIRES: the item's Q tile is combined in
// two levels.
__device__ __forceinline__ CombinePoint GroupCombine(const AttentionKernelParams& p,
                                                     const WorkUnit& unit) {
  const WorkItem& item = unit.item;
  const int num_queries = item.query_end - item.query_begin;
  const int first_split =
      (item.partial - item.first_partial) / num_queries / kCombineGroup * kCombineGroup;
  CombinePoint point;
  point.to = item.first_partial + first_split * num_queries;
  point.arrivals = p.work.group_arrivals + static_cast<int64_t>(point.to) * p.work.num_head_tiles +
                   unit.head_tile;
  point.shared = {0, 0, 0};
  point.own = {point.to, min(kCombineGroup, item.num_partials - first_split), SplitStride(p, item)};
  point.num_arrivals = point.own.count;
  return point;
}

// Arrives, and returns whether this CTA is the last to arrive. In the last CTA, everything that the
// other CTAs wrote before they arrived is visible. Called by all threads that compute.
template <typename Traits>
__device__ __forceinline__ bool IsLastArrival(uint32_t* arrivals, uint32_t num_arrivals,
                                              int& is_last) {
  Traits::Sync();
  if (threadIdx.x == 0) {
    // The last arrival wraps the counter to 0, which resets it for the next layer.
    is_last = IncrementAcquireRelease(arrivals, num_arrivals - 1) == num_arrivals - 1;
  }
  Traits::Sync();
  return is_last;
}

// Arrives at the combine of all splits of the unit's queries, in one level.
template <typename Traits>
__device__ __forceinline__ bool ArriveAtCombine(const AttentionKernelParams& p,
                                                const WorkUnit& unit, int& is_last) {
  const WorkItem& item = unit.item;
  return IsLastArrival<Traits>(ArrivalsAt(p, unit), item.num_shared_partials + item.num_partials,
                               is_last);
}

// Number of rows that a warp processes at a time.
template <typename Traits>
inline constexpr int kRowsOfWarp = Traits::kHeadDimV < 128 ? 128 / Traits::kHeadDimV : 1;

// Adds up the partials of some rows of a combine. A thread has 4 columns of one row at a time, and
// reads the row's partials in rounds of at most kLanes (16 or 32). If half of the buffer holds all
// partials of a row (each list of them, if there are shared ones), loads are double-buffered: the
// thread's next round is in flight while it sums the current round. Otherwise a round may use the
// whole buffer. `kHasShared`: whether the combine may have partials of shared items.
template <typename Traits, bool kHasShared>
class PartialAdder {
 public:
  // REQUIRES: rows.begin is a multiple of kRowsOfWarp<Traits>.
  __device__ __forceinline__ PartialAdder(const AttentionKernelParams& p, const WorkUnit& unit,
                                          const CombinePoint& point, const RowRange& rows,
                                          AttentionShared<Traits>& shared)
      : p_(p), unit_(unit), point_(point), shared_(shared) {
    // With block scales of out, the buffer must not overlap group 0's sums, where finished rows
    // wait for StoreBlocks().
    const int taken = p.out_block_scales == nullptr ? 0 : Shared::kCombineSlotsOfOut;
    slots_ = shared.merge.slots[taken] + threadIdx.x;
    const int half = min(kLanes, (Shared::kCombineSlots - taken) / 2);
    is_ahead_ = point.own.count <= half && (!kHasShared || point.shared.count <= half);
    turn_size_ = is_ahead_ ? half : min(kLanes, Shared::kCombineSlots - taken);
    first_part_ = rows.begin * kRowParts + static_cast<int>(threadIdx.x);
    end_part_ = rows.end * kRowParts;
  }

  // Called by all threads.
  __device__ __forceinline__ void Run() {
    Turn turn = {first_part_, !HasShared(), 0};
    float lse = Fetch(turn, 0);
    Sum sum;
#pragma unroll 1
    for (int stage = 0; turn.part - static_cast<int>(threadIdx.x) < end_part_;) {
      const Turn next = After(turn);
      const int next_stage = is_ahead_ ? stage ^ 1 : 0;
      float next_lse = is_ahead_ ? Fetch(next, next_stage) : 0.0f;
      if (IsWarpIn(turn)) Add(turn, stage, lse, sum);
      if (next.part != turn.part) {
        Finish(turn, sum);
        sum = Sum();
      }
      if (!is_ahead_) next_lse = Fetch(next, next_stage);
      turn = next;
      stage = next_stage;
      lse = next_lse;
    }
  }

 private:
  using Shared = AttentionShared<Traits>;
  static constexpr int kRowParts = Traits::kHeadDimV / 4;
  // Threads of a warp with the same row. Each loads the lse of one partial per round.
  static constexpr int kLanes = kRowParts < 32 ? kRowParts : 32;
  static_assert(Shared::kCombineSlots - Shared::kCombineSlotsOfOut >= 2);

  struct Turn {
    int part;  // row * kRowParts + column / 4
    bool is_own;
    int begin;  // index of the round's first partial in its list
  };

  // 4 columns of out, relative to total.max.
  struct Sum {
    RowTotal total = {-INFINITY, 0.0f};
    float of[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  };

  __device__ __forceinline__ bool HasShared() const {
    return kHasShared && point_.shared.count > 0;
  }
  __device__ __forceinline__ const PartialList& ListOf(const Turn& turn) const {
    return !kHasShared || turn.is_own ? point_.own : point_.shared;
  }
  __device__ __forceinline__ int CountOf(const Turn& turn) const {
    return min(turn_size_, ListOf(turn).count - turn.begin);
  }
  __device__ __forceinline__ Turn After(const Turn& turn) const {
    if (turn.begin + turn_size_ < ListOf(turn).count) {
      return {turn.part, turn.is_own, turn.begin + turn_size_};
    }
    if (kHasShared && !turn.is_own) return {turn.part, true, 0};
    return {turn.part + Traits::kThreads, !HasShared(), 0};
  }

  // Whether any thread of the warp has a row in this round.
  __device__ __forceinline__ bool IsWarpIn(const Turn& turn) const {
    return turn.part - turn.part % 32 < end_part_;
  }
  __device__ __forceinline__ int ColumnOf(const Turn& turn) const {
    return turn.part % kRowParts * 4;
  }
  __device__ __forceinline__ bool IsThere(const Turn& turn) const {
    return turn.part < end_part_ && ColumnOf(turn) < p_.head_dim_v;
  }
  __device__ __forceinline__ TileRow RowOf(const Turn& turn) const {
    return RowAt(p_, unit_, min(turn.part, end_part_ - 1) / kRowParts);
  }

  // Starts the copies of a round as one cp.async group, which may be empty. Returns the lse of this
  // lane's partial.
  __device__ __forceinline__ float Fetch(const Turn& turn, int stage) const {
    float lse = -INFINITY;
    if (IsWarpIn(turn)) {
      const PartialList& list = ListOf(turn);
      const int64_t first = PartialAt(p_.work, list.first, RowOf(turn)) + turn.begin * list.stride;
      const int64_t pitch = PartialPitch(p_.head_dim_v);
      const float* out = p_.work.partial_out + first * pitch + (IsThere(turn) ? ColumnOf(turn) : 0);
      const int count = CountOf(turn);
      const int lane = threadIdx.x % kLanes;
      const uint32_t slot = SharedAddress(slots_ + stage * turn_size_ * Traits::kThreads);
      if (lane < count) lse = __ldcg(p_.work.partial_lse + first + lane * list.stride);
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        CopyAsync16(slot + i * (Traits::kThreads * 16), out, true);
        out += list.stride * pitch;
      }
    }
    CommitCopies();
    return lse;
  }

  __device__ __forceinline__ void Add(const Turn& turn, int stage, float own_lse, Sum& sum) const {
    float max = fmaxf(own_lse, sum.total.max);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, distance));
    }
    const float reference = Reference(max);
    const float own_weight = Exp2<Traits>(own_lse - reference);
    const float rescale = Exp2<Traits>(sum.total.max - reference);
    sum.total.max = max;
    sum.total.sum *= rescale;
#pragma unroll
    for (int e = 0; e < 4; ++e) sum.of[e] *= rescale;
    const uint4* const slots = slots_ + stage * turn_size_ * Traits::kThreads;
    const int count = CountOf(turn);
    if (is_ahead_) {
      WaitForCopies<1>();
    } else {
      WaitForCopies<0>();
    }
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      const float weight = __shfl_sync(kFullWarp, own_weight, i, kLanes);
      const float4 value = *reinterpret_cast<const float4*>(slots + i * Traits::kThreads);
      sum.total.sum += weight;
      sum.of[0] = fmaf(weight, value.x, sum.of[0]);
      sum.of[1] = fmaf(weight, value.y, sum.of[1]);
      sum.of[2] = fmaf(weight, value.z, sum.of[2]);
      sum.of[3] = fmaf(weight, value.w, sum.of[3]);
    }
  }

  // Writes a row's sum to its destination. Called by all threads.
  __device__ __forceinline__ void Finish(const Turn& turn, Sum& sum) const {
    const bool is_there = IsThere(turn);
    const int column = ColumnOf(turn);
    const TileRow row = RowOf(turn);
    float lse = 0.0f;
    float factor = 0.0f;
    if (is_there) {
      factor = point_.to < 0 ? FinishRow(p_, unit_, row, sum.total)
                             : FinishPartialRow<Traits>(sum.total, lse);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) sum.of[e] *= factor;
    if (point_.to < 0) {
      if (is_there) {
        StoreFinished<Traits>(p_, shared_.results, row, turn.part / kRowParts, column, sum.of);
      }
      return;
    }
    // The sum overwrites the group's first partial. The barrier ensures that all threads of the row
    // have read its lse.
    if constexpr (kRowParts > 32) {
      Traits::Sync();
    } else {
      __syncwarp();
    }
    if (!is_there) return;
    const int64_t partial = PartialAt(p_.work, point_.to, row);
    StorePartial(p_, partial, column, sum.of);
    if (column + 4 >= p_.head_dim_v) p_.work.partial_lse[partial] = lse;
  }

  const AttentionKernelParams& p_;
  const WorkUnit& unit_;
  const CombinePoint& point_;
  Shared& shared_;
  uint4* slots_;
  int turn_size_;
  bool is_ahead_;
  int first_part_;  // this thread's first part
  int end_part_;
};

// Not inlined or tuned, because few batches have shared items.
template <typename Traits>
__device__ __noinline__ void AddSharedPartials(const AttentionKernelParams& p, const WorkUnit& unit,
                                               const CombinePoint& point,
                                               AttentionShared<Traits>& shared) {
  PartialAdder<Traits, true>(p, unit, point, {0, unit.num_rows}, shared).Run();
}

// Adds up the partials of a combine. Called by all threads.
template <typename Traits>
__device__ __forceinline__ void CombinePartials(const AttentionKernelParams& p,
                                                const WorkUnit& unit, const CombinePoint& point,
                                                AttentionShared<Traits>& shared) {
  if (point.shared.count > 0) {
    AddSharedPartials<Traits>(p, unit, point, shared);
  } else {
    PartialAdder<Traits, false>(p, unit, point, {0, unit.num_rows}, shared).Run();
  }
  WaitForCopies<0>();  // empty groups
  if (point.to < 0 && p.out_block_scales != nullptr) {
    Traits::Sync();
    StoreBlocks<Traits>(p, unit, shared.results);
  }
}

// Arrives at the combine of the unit's partial, and performs it if this CTA is the last to arrive.
// A shared item arrives at the combine of every row that has queries in it. `unit` may be
// overwritten. Called by all threads.
template <typename Traits>
__device__ __forceinline__ void ArriveAndCombine(const AttentionKernelParams& p, WorkUnit& unit,
                                                 AttentionShared<Traits>& shared) {
  const bool is_shared = unit.item.row == kSharedRow;
  const int end_child = unit.item.end_child;
  int child = unit.item.first_child;
#pragma unroll 1
  do {
    bool in_group = !is_shared && unit.item.num_partials > kMaxSplitsAtOnce;
    if (is_shared) {
      if (child >= end_child) return;
      Traits::Sync();  // the previous unit is no longer in use
      LoadItem(p.work.items + child, unit);
      CommitCopies();
      WaitForCopies<0>();
      Traits::Sync();
      if (threadIdx.x == 0) CompleteUnit<Traits>(p, unit.head_tile, unit);
      Traits::Sync();
      // Only a batch that exceeds the plan has a Q tile without partials.
      if (unit.item.num_partials == 0) {
        ++child;
        continue;
      }
      child += unit.item.num_partials;
    }
#pragma unroll 1
    for (;;) {
      const CombinePoint point = in_group ? GroupCombine(p, unit) : WholeCombine(p, unit);
      if (!IsLastArrival<Traits>(point.arrivals, point.num_arrivals, shared.is_last_arrival)) break;
      CombinePartials<Traits>(p, unit, point, shared);
      if (!in_group) break;
      in_group = false;
    }
  } while (is_shared);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_PARTIAL_COMBINE_CUH_
