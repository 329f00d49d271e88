// The units of a CTA of warpgroups, and what is prepared about them in advance.
//
// A unit is special if its logits are more than products times a scale, or are capped, or if a row
// sees more than an interval of its local keys. Special units use the general code of logits.cuh.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_UNIT_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_UNIT_CUH_

#include <climits>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/logits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/base/dtype.h"

namespace reprise {

// Whether a key that no query of the unit sees may be between others that some do. Where positions
// are consecutive, a query sees an interval, and the next query's interval begins and ends no
// earlier.
__device__ __forceinline__ bool MayHaveHoles(const AttentionKernelParams& p, const WorkUnit& unit) {
  return p.query_positions != nullptr || unit.item.tail_len > 0 || p.sparse_stride > 0;
}

template <typename Traits>
__device__ __forceinline__ bool IsSpecial(const AttentionKernelParams& p, const WorkUnit& unit) {
  if (Traits::kOnlyPlain) return false;
  // Rows of shared items may have scales of their own.
  const bool is_uniform =
      unit.item.row != kSharedRow || (p.q_scale.data == nullptr && p.k_scale.data == nullptr &&
                                      p.q_scale.value * p.k_scale.value > 0.0f);
  return MayHaveHoles(p, unit) || p.alibi_slopes != nullptr || p.world > 1 || !is_uniform ||
         !(unit.logit_scale > 0.0f);
}

// Whether the results of ordinary units go directly from registers to their destination.
template <typename Traits>
__host__ __device__ __forceinline__ bool ResultsAreDirect(const AttentionKernelParams& p) {
  // With caches of fp8, out has the type of q.
  const bool is_direct_type = p.out_dtype == Traits::kTile.dtype ||
                              (Traits::kArrivesAsFp8 && p.out_dtype == DType::kBFloat16);
  return is_direct_type && p.out_is_aligned && p.head_dim_v % 4 == 0 &&
         p.out_block_scales == nullptr;
}

// Whether the unit's results do; else they go through the shared memory of keys and values
// (unit_results.cuh).
template <typename Traits>
__device__ __forceinline__ bool WritesDirectly(const AttentionKernelParams& p,
                                               const WorkUnit& unit) {
  if (Traits::kOnlyPlain) return true;
  return ResultsAreDirect<Traits>(p) && unit.item.row != kSharedRow &&
         unit.item.num_shared_partials == 0;
}

// Whether no unit of the call is special, and all write directly. What depends on data of the
// device counts as if it were so: scales per sequence or head, tails, shared prefixes.
template <typename Traits>
bool HasOnlyPlainUnits(const AttentionKernelParams& p) {
  const bool is_scaled_up = p.q_scale.data == nullptr && p.k_scale.data == nullptr &&
                            p.scale * (p.q_scale.value * p.k_scale.value) > 0.0f;
  return is_scaled_up && p.softcap <= 0.0f && p.query_positions == nullptr &&
         p.tail_mask == nullptr && p.sparse_stride == 0 && p.alibi_slopes == nullptr &&
         p.world <= 1 && p.work.max_shared_tiles == 0 && ResultsAreDirect<Traits>(p);
}

// What a row of a unit that is not special sees.
__device__ __forceinline__ SeenKeys KeysSeenBy(const WorkUnit& unit, const QueryRow& row) {
  if (row.token < 0) return {0, 0};
  return KeysAtPositions(unit, row.first_seen, row.last_seen, unit.item.key_end);
}

// One row of the tile.
struct alignas(16) PreparedRow {
  SeenKeys seen;  // in units that are neither special nor shared
  int token;      // -1: the tile has no such row
  int q_head;
};

__device__ __forceinline__ PreparedRow PrepareRow(const AttentionKernelParams& p,
                                                  const WorkUnit& unit, int row) {
  if (row >= unit.num_rows) return {{0, 0}, -1, 0};
  const TileRow tile_row = RowAt(p, unit, row);
  const QueryRow query = LoadOrdinaryRow(p, unit, tile_row);
  return {KeysSeenBy(unit, query), tile_row.token, tile_row.q_head};
}

template <typename Traits>
__device__ __forceinline__ int NumSteps(const WorkItem& item) {
  return (item.key_end - item.key_begin + Traits::kKeys - 1) / Traits::kKeys;
}

// All that needs to be known about a unit.
template <typename Traits>
struct PreparedUnit {
  WorkUnit unit;
  int num_steps;
  bool is_special;
  bool writes_directly;  // WritesDirectly()
  // What all rows of a warp see, in units that are neither special nor shared. Missing rows are
  // left out of account.
  SeenKeys seen_by_all[Traits::kWarpsM];
  PreparedRow rows[Traits::kRows];
};

// Prepares all but the rows, for a unit whose item has arrived. Called by one thread.
template <typename Traits>
__device__ __forceinline__ void PrepareUnit(const AttentionKernelParams& p, int virtual_head,
                                            PreparedUnit<Traits>& prepared) {
  WorkUnit& unit = prepared.unit;
  CompleteUnit<Traits>(p, virtual_head, unit);
  prepared.num_steps = NumSteps<Traits>(unit.item);
  prepared.is_special = IsSpecial<Traits>(p, unit);
  prepared.writes_directly = WritesDirectly<Traits>(p, unit);
}

// Prepares row `row` of a unit, and what all 16 rows of its warp see. Called by one thread per row.
template <typename Traits>
__device__ __forceinline__ void NoteRow(const AttentionKernelParams& p, int row,
                                        PreparedUnit<Traits>& prepared) {
  const PreparedRow own = PrepareRow(p, prepared.unit, row);
  prepared.rows[row] = own;
  SeenKeys seen = own.seen;
  if (own.token < 0) seen.end = INT_MAX;
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2) {
    seen.begin = max(seen.begin, __shfl_xor_sync(kFullWarp, seen.begin, distance));
    seen.end = min(seen.end, __shfl_xor_sync(kFullWarp, seen.end, distance));
  }
  if (row % 16 == 0) prepared.seen_by_all[row / 16] = seen;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_UNIT_CUH_
