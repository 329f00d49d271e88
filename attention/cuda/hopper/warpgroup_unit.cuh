// The units of a CTA of a warpgroup kernel, and the values that the loader computes for them in
// advance.
//
// A unit is special (IsSpecial()) in one of these cases: its call has query positions or a sparse
// pattern, or its row has a tail (MayHaveHoles()); the call has ALiBi or context parallelism; the
// rows of a shared item may have different scales; the scale is not positive. Special units use the
// general code of logits.cuh. All other units are plain, unless the call has a softcap.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_UNIT_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_UNIT_CUH_

#include <climits>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/logits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/base/dtype.h"

namespace reprise {

// Whether a key that no query of the unit sees may be between keys that some query sees. If
// positions are consecutive, each query sees an interval, and the next query's interval neither
// begins nor ends earlier, so there are no such keys.
__device__ __forceinline__ bool MayHaveHoles(const AttentionKernelParams& p, const WorkUnit& unit) {
  return p.query_positions != nullptr || unit.item.tail_len > 0 || p.sparse_stride > 0;
}

template <typename Traits>
__device__ __forceinline__ bool IsSpecial(const AttentionKernelParams& p, const WorkUnit& unit) {
  if (Traits::kOnlyPlain) return false;
  // The rows of a shared item may have different scales.
  const bool is_uniform =
      unit.item.row != kSharedRow || (p.q_scale.data == nullptr && p.k_scale.data == nullptr &&
                                      p.q_scale.value * p.k_scale.value > 0.0f);
  return MayHaveHoles(p, unit) || p.alibi_slopes != nullptr || p.world > 1 || !is_uniform ||
         !(unit.logit_scale > 0.0f);
}

// Whether ordinary units use the register epilogue (warpgroup_results.cuh).
template <typename Traits>
__host__ __device__ __forceinline__ bool ResultsAreDirect(const AttentionKernelParams& p) {
  // With an fp8 cache, the MMA type is float16, but q and out may be bfloat16.
  const bool is_direct_type = p.out_dtype == Traits::kTile.dtype ||
                              (Traits::kArrivesAsFp8 && p.out_dtype == DType::kBFloat16);
  return is_direct_type && p.out_is_aligned && p.head_dim_v % 4 == 0 &&
         p.out_block_scales == nullptr;
}

// Whether this unit uses the register epilogue. Otherwise its results go through the shared memory
// of keys and values (unit_results.cuh).
template <typename Traits>
__device__ __forceinline__ bool WritesDirectly(const AttentionKernelParams& p,
                                               const WorkUnit& unit) {
  if (Traits::kOnlyPlain) return true;
  return ResultsAreDirect<Traits>(p) && unit.item.row != kSharedRow &&
         unit.item.num_shared_partials == 0;
}

// Whether all units of the call are plain and use the register epilogue. Returns false if the
// answer depends on device data: scales in device memory, trees, shared prefixes.
template <typename Traits>
bool HasOnlyPlainUnits(const AttentionKernelParams& p) {
  const bool is_scaled_up = p.q_scale.data == nullptr && p.k_scale.data == nullptr &&
                            p.scale * (p.q_scale.value * p.k_scale.value) > 0.0f;
  return is_scaled_up && p.softcap <= 0.0f && p.query_positions == nullptr &&
         p.tail_mask == nullptr && p.sparse_stride == 0 && p.alibi_slopes == nullptr &&
         p.world <= 1 && p.work.max_shared_tiles == 0 && ResultsAreDirect<Traits>(p);
}

// The keys that a row sees, in a unit that is not special.
__device__ __forceinline__ SeenKeys KeysSeenBy(const WorkUnit& unit, const QueryRow& row) {
  if (row.token < 0) return {0, 0};
  return KeysAtPositions(unit, row.first_seen, row.last_seen, unit.item.key_end);
}

// One row of the tile.
struct alignas(16) PreparedRow {
  SeenKeys seen;  // valid in units that are neither special nor shared
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

// A unit, with the values that the loader computes in advance.
template <typename Traits>
struct PreparedUnit {
  WorkUnit unit;
  int num_steps;
  bool is_special;
  bool writes_directly;  // WritesDirectly()
  // The keys that all rows of a warp see, in units that are neither special nor shared. Ignores
  // absent rows.
  SeenKeys seen_by_all[Traits::kWarpsM];
  PreparedRow rows[Traits::kRows];
};

// Computes all fields except `rows` and `seen_by_all`. REQUIRES: the unit's item has arrived.
// Called by one thread.
template <typename Traits>
__device__ __forceinline__ void PrepareUnit(const AttentionKernelParams& p, int head_tile,
                                            PreparedUnit<Traits>& prepared) {
  WorkUnit& unit = prepared.unit;
  CompleteUnit<Traits>(p, head_tile, unit);
  prepared.num_steps = NumSteps<Traits>(unit.item);
  prepared.is_special = IsSpecial<Traits>(p, unit);
  prepared.writes_directly = WritesDirectly<Traits>(p, unit);
}

// Computes row `row` of a unit, and the keys that all 16 rows of its warp see. Called by one thread
// per row.
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
