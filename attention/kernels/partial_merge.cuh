// Merges of split keys: adds up the partials of a row's pieces, in key order whoever arrived last,
// so that the bits do not depend on timing.
//
// The last CTA to arrive at a merge does it. A range in many pieces is merged in two levels, by
// tens, so that several CTAs share the work: the last to arrive at a group of kMergeGroup pieces
// leaves the group's sum in the place of its first, and the last group to arrive adds up those.
//
// Bound: the L2 cache's latency, then 64 bytes a cycle of one multiprocessor. All partials of a row
// (32 at a time) are under way at once, by cp.async, in the memory that keys have left; each thread
// adds up the 4 columns that it copied itself, so nobody waits for anybody.

#ifndef ATTENTION_KERNELS_PARTIAL_MERGE_CUH_
#define ATTENTION_KERNELS_PARTIAL_MERGE_CUH_

#include <cmath>
#include <cstdint>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/kernels/device_primitives.cuh"
#include "attention/kernels/online_softmax.cuh"
#include "attention/kernels/tile_traits.cuh"
#include "attention/kernels/unit_results.cuh"
#include "attention/kernels/work_unit.cuh"
#include "attention/work_map.h"

namespace reprise {

// Partials of a tile's rows, in key order: the n-th of a row is PartialAt(first, row) + n * stride.
struct PartialList {
  int first;
  int count;
  int64_t stride;
};

__device__ __forceinline__ int64_t PieceStride(const AttentionKernelParams& p,
                                               const WorkItem& item) {
  return static_cast<int64_t>(item.query_end - item.query_begin) * p.work.num_q_heads;
}

// What is merged for the queries of an item: the shared ones first.
__device__ __forceinline__ PartialList SharedPartials(const AttentionKernelParams& p,
                                                      const WorkItem& item) {
  return {item.first_shared_partial, item.num_shared_partials,
          static_cast<int64_t>(p.work.tile_queries) * p.work.num_q_heads};
}
__device__ __forceinline__ PartialList OwnPartials(const AttentionKernelParams& p,
                                                   const WorkItem& item) {
  return {item.first_partial, item.num_partials, PieceStride(p, item)};
}

// Where CTAs arrive, and what the last of them does.
struct MergePoint {
  uint32_t* arrivals;
  uint32_t num_arrivals;
  PartialList shared;
  PartialList own;
  int to;  // the partial in whose place the sum is left; -1: out
};

// The merge of an item's queries: of its pieces, or of the groups of its pieces.
__device__ __forceinline__ MergePoint WholeMerge(const AttentionKernelParams& p,
                                                 const WorkUnit& unit) {
  const WorkItem& item = unit.item;
  MergePoint point;
  point.arrivals = p.work.arrivals + item.merge * p.work.num_virtual_heads + unit.virtual_head;
  point.shared = SharedPartials(p, item);
  point.own = OwnPartials(p, item);
  point.to = -1;
  if (item.num_partials > kMostPiecesAtOnce) {
    point.own.count = (item.num_partials + kMergeGroup - 1) / kMergeGroup;
    point.own.stride *= kMergeGroup;
  }
  point.num_arrivals = point.shared.count + point.own.count;
  return point;
}

// The merge of the group that an item is in. REQUIRES: the item is in one.
__device__ __forceinline__ MergePoint GroupMerge(const AttentionKernelParams& p,
                                                 const WorkUnit& unit) {
  const WorkItem& item = unit.item;
  const int num_queries = item.query_end - item.query_begin;
  const int first_piece =
      (item.partial - item.first_partial) / num_queries / kMergeGroup * kMergeGroup;
  MergePoint point;
  point.to = item.first_partial + first_piece * num_queries;
  point.arrivals = p.work.group_arrivals +
                   static_cast<int64_t>(point.to) * p.work.num_virtual_heads + unit.virtual_head;
  point.shared = {0, 0, 0};
  point.own = {point.to, min(kMergeGroup, item.num_partials - first_piece), PieceStride(p, item)};
  point.num_arrivals = point.own.count;
  return point;
}

// Whether this CTA is the last to arrive. Then it sees what the others wrote before they arrived.
// For all threads.
template <typename Traits>
__device__ __forceinline__ bool IsLastArrival(uint32_t* arrivals, uint32_t num_arrivals,
                                              int& is_last) {
  Traits::Meet();
  if (threadIdx.x == 0) {
    // Wraps to 0 at the last arrival, ready for the next layer.
    is_last = IncrementAcquireRelease(arrivals, num_arrivals - 1) == num_arrivals - 1;
  }
  Traits::Meet();
  return is_last;
}

// The same at the merge of the unit's pieces, all at once.
template <typename Traits>
__device__ __forceinline__ bool ArriveAtMerge(const AttentionKernelParams& p, const WorkUnit& unit,
                                              int& is_last) {
  const WorkItem& item = unit.item;
  return IsLastArrival<Traits>(
      p.work.arrivals + item.merge * p.work.num_virtual_heads + unit.virtual_head,
      item.num_shared_partials + item.num_partials, is_last);
}

// A row's partials, added up as they come: 4 columns of out, relative to total.max.
struct MergedColumns {
  RowTotal total = {-INFINITY, 0.0f};
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
};

// By the threads of a row together, kLanes of each of their warps; all lanes of a warp take part.
// `slots`: this thread's, kThreads apart.
template <typename Traits, int kLanes>
__device__ __forceinline__ void AddPartials(const AttentionKernelParams& p, const PartialList& list,
                                            const TileRow& row, int column, uint4* slots,
                                            int num_slots, MergedColumns& merged) {
  const int64_t pitch = PartialPitch(p.head_dim_v);
  const int64_t first = PartialAt(p.work, list.first, row);
  const float* lse = p.work.partial_lse + first;
  const float* out = p.work.partial_out + first * pitch + column;
  const int lane = threadIdx.x % kLanes;
  const uint32_t slot = SharedAddress(slots);
#pragma unroll 1
  for (int begin = 0; begin < list.count; begin += num_slots) {
    const int count = min(num_slots, list.count - begin);
    const float own_lse = lane < count ? __ldcg(lse + (begin + lane) * list.stride) : -INFINITY;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      CopyAsync16(slot + i * (Traits::kThreads * 16), out, true);
      out += list.stride * pitch;
    }
    CommitCopies();
    float max = fmaxf(own_lse, merged.total.max);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, distance));
    }
    const float reference = Reference(max);
    const float own_weight = Exp2<Traits>(own_lse - reference);
    const float rescale = Exp2<Traits>(merged.total.max - reference);
    merged.total.max = max;
    merged.total.sum *= rescale;
#pragma unroll
    for (int e = 0; e < 4; ++e) merged.sum[e] *= rescale;
    WaitForCopies<0>();
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      const float weight = __shfl_sync(kFullWarp, own_weight, i, kLanes);
      const float4 value = *reinterpret_cast<const float4*>(slots + i * Traits::kThreads);
      merged.total.sum += weight;
      merged.sum[0] = fmaf(weight, value.x, merged.sum[0]);
      merged.sum[1] = fmaf(weight, value.y, merged.sum[1]);
      merged.sum[2] = fmaf(weight, value.z, merged.sum[2]);
      merged.sum[3] = fmaf(weight, value.w, merged.sum[3]);
    }
  }
}

// Adds up what a merge is of. By all threads.
template <typename Traits>
__device__ __forceinline__ void MergePartials(const AttentionKernelParams& p, const WorkUnit& unit,
                                              const MergePoint& point,
                                              AttentionShared<Traits>& shared) {
  using Shared = AttentionShared<Traits>;
  constexpr int kRowParts = Traits::kHeadDimV / 4;
  constexpr int kLanes = kRowParts < 32 ? kRowParts : 32;
  constexpr int kSlots = Shared::kMergeSlots < kLanes ? Shared::kMergeSlots : kLanes;
  // Where blocks of columns have a scale of their own, group 0's share is of use.
  const int taken = p.out_block_scales == nullptr ? 0 : Shared::kMergeSlotsOfOut;
  uint4* const slots = shared.merge.slots[taken] + threadIdx.x;
  const int num_slots = min(kSlots, Shared::kMergeSlots - taken);
  const int num_parts = unit.num_rows * kRowParts;
#pragma unroll 1
  for (int begin = 0; begin < num_parts; begin += Traits::kThreads) {
    const int at = begin + threadIdx.x;
    const int column = at % kRowParts * 4;
    const bool is_there = at < num_parts && column < p.head_dim_v;
    const TileRow row = RowAt(p, unit, min(at, num_parts - 1) / kRowParts);
    MergedColumns merged;
    if (at - at % 32 < num_parts) {  // whole warps
#pragma unroll 1
      for (int own = point.shared.count > 0 ? 0 : 1; own < 2; ++own) {
        AddPartials<Traits, kLanes>(p, own ? point.own : point.shared, row, is_there ? column : 0,
                                    slots, num_slots, merged);
      }
    }
    float lse = 0.0f;
    float factor = 0.0f;
    if (is_there) {
      factor = point.to < 0 ? FinishRow(p, unit, row, merged.total)
                            : FinishPartialRow<Traits>(merged.total, lse);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) merged.sum[e] *= factor;
    if (point.to < 0) {
      if (is_there) {
        StoreFinished<Traits>(p, shared.results, row, at / kRowParts, column, merged.sum);
      }
      continue;
    }
    // In the place of the group's first, whose lse all threads of the row read.
    if constexpr (kRowParts > 32) {
      Traits::Meet();
    } else {
      __syncwarp();
    }
    if (!is_there) continue;
    const int64_t partial = PartialAt(p.work, point.to, row);
    StorePartial(p, partial, column, merged.sum);
    if (column + 4 >= p.head_dim_v) p.work.partial_lse[partial] = lse;
  }
  if (point.to < 0 && p.out_block_scales != nullptr) {
    Traits::Meet();
    StoreBlocks<Traits>(p, unit, shared.results);
  }
}

// Arrives where the unit's partials are merged, and merges them if it is the last. A shared item
// arrives at the merges of all the rows whose queries it has. `unit` may be lost. By all threads.
template <typename Traits>
__device__ __forceinline__ void ArriveAndMerge(const AttentionKernelParams& p, WorkUnit& unit,
                                               AttentionShared<Traits>& shared) {
  const bool is_shared = unit.item.row == kSharedRow;
  const int end_child = unit.item.end_child;
  int child = unit.item.first_child;
#pragma unroll 1
  do {
    bool in_group = !is_shared && unit.item.num_partials > kMostPiecesAtOnce;
    if (is_shared) {
      if (child >= end_child) return;
      Traits::Meet();  // the unit before is done with
      LoadItem(p.work.items + child, unit);
      CommitCopies();
      WaitForCopies<0>();
      Traits::Meet();
      if (threadIdx.x == 0) CompleteUnit<Traits>(p, unit.virtual_head, unit);
      Traits::Meet();
      child += unit.item.num_partials;
    }
#pragma unroll 1
    for (;;) {
      const MergePoint point = in_group ? GroupMerge(p, unit) : WholeMerge(p, unit);
      if (!IsLastArrival<Traits>(point.arrivals, point.num_arrivals, shared.is_last_arrival)) break;
      MergePartials<Traits>(p, unit, point, shared);
      if (!in_group) break;
      in_group = false;
    }
  } while (is_shared);
}

}  // namespace reprise

#endif  // ATTENTION_KERNELS_PARTIAL_MERGE_CUH_
