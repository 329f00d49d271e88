// Computes logits from dot products: scale, softcap, ALiBi, and visibility of keys. Implements the
// terms of attention/attention_params.h and the visibility rules of attention/paged_batch.h.
//
// Logits are in base 2: natural logits times log2(e), so that weights use exp2 instead of exp.
//
// A lane l holds the logits of two rows of the tile: rows l / 4 and l / 4 + 8 of its warp's 16
// rows. For each 8 keys n, it holds columns n * 8 + l % 4 * 2 + {0, 1}: s[n][0] and s[n][1] for the
// first row, s[n][2] and s[n][3] for the second row.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_LOGITS_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_LOGITS_CUH_

#include <climits>
#include <cmath>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/page_lookup.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/base/divisor.h"

namespace reprise {

// Whether a kernel serves custom masks and per-sequence ALiBi slopes. Tier 2 kernels do not,
// because the function calls would cost registers.
template <typename Traits>
inline constexpr bool kServesRareTerms = requires {
  Traits::kServesRareTerms;
};

// One of a lane's two rows.
struct QueryRow {
  int token;  // -1: the tile has no such row
  int q_head;
  int position;
  int first_seen, last_seen;  // positions within causality and the window
  float logit_scale;          // all factors of the dot product
};

// An absent row, which sees no key.
__device__ __forceinline__ QueryRow NoQueryRow() { return {-1, 0, 0, INT_MAX, INT_MIN, 0.0f}; }

__device__ __forceinline__ int Saturate(int64_t value) {
  return static_cast<int>(value < INT_MIN ? INT_MIN : value > INT_MAX ? INT_MAX : value);
}

// The position of a key outside the tree mask region (the tail).
__device__ __forceinline__ int KeyPosition(const AttentionKernelParams& p, const WorkUnit& unit,
                                           int key) {
  const int token = unit.item.key_start + key;
  if (p.world == 1) return token;
  const int run = token / p.interleave;
  return (run * p.world + p.rank) * p.interleave + token - run * p.interleave;
}

// The row of the batch that has query `token`.
__device__ __forceinline__ int RowOfToken(const AttentionKernelParams& p, int token) {
  int row = 0;
  for (int end = p.num_rows; end - row > 1;) {
    const int middle = (row + end) / 2;
    if (p.query_start_loc[middle] <= token) {
      row = middle;
    } else {
      end = middle;
    }
  }
  return row;
}

__device__ __forceinline__ int TableRowOf(const AttentionKernelParams& p, int row) {
  return p.table_row ? p.table_row[row] : row;
}

// Whether a custom mask replaces causality for the unit's queries.
__device__ __forceinline__ bool HasCustomMask(const AttentionKernelParams& p,
                                              const WorkUnit& unit) {
  return p.custom_mask != nullptr && p.custom_mask_offset[unit.item.row] >= 0;
}

// Loads a row of a shared item. Every row sees all of the item's keys, except padded rows, which
// see nothing.
inline __device__ __noinline__ QueryRow LoadSharedRow(const AttentionKernelParams& p,
                                                      const WorkUnit& unit,
                                                      const TileRow& tile_row) {
  const int token = tile_row.token;
  const int row = RowOfToken(p, token);
  if (p.seq_lens[row] <= 0) return {token, tile_row.q_head, 0, INT_MAX, INT_MIN, 0.0f};
  // All rows of a shared item have the item's key_start.
  const int first_position = unit.item.key_start + p.seq_lens[row] - p.query_start_loc[row + 1];
  const int table_row = TableRowOf(p, row);
  QueryRow query;
  query.token = token;
  query.q_head = tile_row.q_head;
  query.position = p.query_positions ? p.query_positions[token] : first_position + token;
  query.first_seen = INT_MIN;
  query.last_seen = INT_MAX;
  query.logit_scale = unit.logit_scale * ScaleAt(p.q_scale, table_row, unit.kv_head) *
                      ScaleAt(p.k_scale, table_row, unit.kv_head);
  if (p.q_head_scales != nullptr) query.logit_scale *= p.q_head_scales[query.q_head];
  return query;
}

// Loads a row of an item of a single row of the batch.
__device__ __forceinline__ QueryRow LoadOrdinaryRow(const AttentionKernelParams& p,
                                                    const WorkUnit& unit, const TileRow& tile_row) {
  QueryRow query;
  query.logit_scale = unit.logit_scale;
  if (p.q_head_scales != nullptr) query.logit_scale *= p.q_head_scales[tile_row.q_head];
  query.token = tile_row.token;
  query.q_head = tile_row.q_head;
  query.position = p.query_positions ? p.query_positions[tile_row.token]
                                     : unit.item.first_position + tile_row.query;
  const int64_t position = query.position;
  query.first_seen = p.window_left < 0 ? INT_MIN : Saturate(position - p.window_left);
  query.last_seen = p.window_right < 0 ? INT_MAX : Saturate(position + p.window_right);
  if (p.causal && unit.item.tail_len == 0 && !HasCustomMask(p, unit)) {
    query.last_seen = min(query.last_seen, query.position);
  }
  return query;
}

__device__ __forceinline__ QueryRow LoadQueryRow(const AttentionKernelParams& p,
                                                 const WorkUnit& unit, int row) {
  if (row >= unit.num_rows) return NoQueryRow();
  const TileRow tile_row = RowAt(p, unit, row);
  if (unit.item.row == kSharedRow) return LoadSharedRow(p, unit, tile_row);
  return LoadOrdinaryRow(p, unit, tile_row);
}

// The positions visible to all rows of a warp, and the range from the first to the last position
// that is visible to at least one row.
struct WarpView {
  bool has_rows;
  int first_seen_by_all, last_seen_by_all;
  int first_seen_by_any, last_seen_by_any;
};

__device__ __forceinline__ WarpView ViewOf(const QueryRow (&rows)[2]) {
  int last_first = INT_MIN, first_last = INT_MAX, first_first = INT_MAX, last_last = INT_MIN;
  bool has_rows = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (rows[r].token < 0) continue;
    has_rows = true;
    last_first = max(last_first, rows[r].first_seen);
    first_last = min(first_last, rows[r].last_seen);
    first_first = min(first_first, rows[r].first_seen);
    last_last = max(last_last, rows[r].last_seen);
  }
  WarpView view;
  view.has_rows = __any_sync(kFullWarp, has_rows);
  view.first_seen_by_all = __reduce_max_sync(kFullWarp, last_first);
  view.last_seen_by_all = __reduce_min_sync(kFullWarp, first_last);
  view.first_seen_by_any = __reduce_min_sync(kFullWarp, first_first);
  view.last_seen_by_any = __reduce_max_sync(kFullWarp, last_last);
  return view;
}

// Local keys [begin, end).
struct SeenKeys {
  int begin;
  int end;
};

// Returns the local keys before `end` at positions `first` to `last`, inclusive. REQUIRES: an item
// whose key positions are consecutive.
__device__ __forceinline__ SeenKeys KeysAtPositions(const WorkUnit& unit, int first, int last,
                                                    int end) {
  const int origin = unit.item.key_start;
  return {max(first, origin) - origin, min(max(last, origin - 1), origin + end - 1) - origin + 1};
}

// Keys before the tail that the rows of a warp see. All ranges are empty if the warp has no rows,
// or if the batch has context parallelism, custom masks or a sparse pattern.
struct WarpKeys {
  SeenKeys by_all;     // seen by every row; nearly all keys in most batches
  SeenKeys by_any;     // seen by at least one row; may be empty if that is not a single range
  SeenKeys of_row[2];  // seen by each of the lane's rows; all keys for an absent row
};

__device__ __forceinline__ WarpKeys KeysOfWarp(const AttentionKernelParams& p, const WorkUnit& unit,
                                               const QueryRow (&rows)[2]) {
  const WarpView view = ViewOf(rows);
  WarpKeys keys = {};
  const bool is_decided = p.world == 1 && p.sparse_stride == 0 && p.custom_mask == nullptr;
  if (!view.has_rows || !is_decided) return keys;
  int end = unit.item.key_end;
  if (unit.item.tail_len > 0) end = min(end, unit.item.prefix_len);
  keys.by_all = KeysAtPositions(unit, view.first_seen_by_all, view.last_seen_by_all, end);
  // Then the ranges of all rows overlap or touch, so their union is a single range.
  if (keys.by_all.begin <= keys.by_all.end) {
    keys.by_any = KeysAtPositions(unit, view.first_seen_by_any, view.last_seen_by_any, end);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // An absent row keeps its logits, which are 0. If they were -inf, its scale, which is 0, would
    // make them NaN.
    keys.of_row[r] = rows[r].token < 0
                         ? SeenKeys{0, INT_MAX}
                         : KeysAtPositions(unit, rows[r].first_seen, rows[r].last_seen, end);
  }
  return keys;
}

// Whether the logits of a warp's rows are dot products times a positive scale, without softcap or
// ALiBi.
__device__ __forceinline__ bool AreOnlyScaled(const AttentionKernelParams& p,
                                              const QueryRow (&rows)[2]) {
  const bool is_scaled = (rows[0].token < 0 || rows[0].logit_scale > 0.0f) &&
                         (rows[1].token < 0 || rows[1].logit_scale > 0.0f);
  return __all_sync(kFullWarp, is_scaled) && p.softcap <= 0.0f && p.alibi_slopes == nullptr;
}

// Sets the logits of keys outside each row's `seen` to -inf.
template <typename Traits>
__device__ __forceinline__ void HideUnseen(const SeenKeys (&seen)[2], int first,
                                           float (&s)[Traits::kKeyTiles][4]) {
  const int lane_first = first + threadIdx.x % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int begin = seen[r].begin - lane_first;
    const int end = seen[r].end - lane_first;
#pragma unroll
    for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = n * 8 + j;
        if (column < begin || column >= end) s[n][r * 2 + j] = -INFINITY;
      }
    }
  }
}

enum class StepView { kNothing, kSome, kAll };

// Returns kAll or kNothing if every row of the warp is known to see all or none of the keys [first,
// first + num_keys). Otherwise returns kSome.
__device__ __forceinline__ StepView ViewStep(const AttentionKernelParams& p, const WorkUnit& unit,
                                             const WarpView& view, int first, int num_keys) {
  if (!view.has_rows) return StepView::kNothing;
  const int end = first + num_keys;
  if (unit.item.tail_len > 0 && end > unit.item.prefix_len) return StepView::kSome;
  const int last_position = KeyPosition(p, unit, end - 1);
  const int first_position = KeyPosition(p, unit, first);
  if (first_position > view.last_seen_by_any || last_position < view.first_seen_by_any) {
    return StepView::kNothing;
  }
  const bool all = end <= unit.item.key_end && first_position >= view.first_seen_by_all &&
                   last_position <= view.last_seen_by_all && p.sparse_stride == 0 &&
                   p.custom_mask == nullptr;
  return all ? StepView::kAll : StepView::kSome;
}

__device__ __forceinline__ bool InSparsePattern(const AttentionKernelParams& p,
                                                const WorkUnit& unit, const QueryRow& row,
                                                int key_position) {
  const int query_block = FloorDiv(row.position, p.sparse_block_size);
  const int key_block = FloorDiv(key_position, p.sparse_block_size);
  if (key_block > query_block - p.sparse_local_blocks) return true;
  const int step = p.sparse_head_step;
  const int64_t offset =
      step >= 0
          ? (static_cast<int64_t>(p.sparse_tp_rank) * p.num_q_heads + row.q_head) * step + 1
          : (static_cast<int64_t>(p.sparse_tp_rank) * p.num_kv_heads + unit.kv_head) * -step + 1;
  return (key_block + offset) % p.sparse_stride == 0;
}

template <typename Traits>
__device__ __forceinline__ void ScaleLogits(const AttentionKernelParams& p,
                                            const QueryRow (&rows)[2],
                                            float (&s)[Traits::kKeyTiles][4]) {
  if (p.softcap > 0.0f) {
    const float inner[2] = {rows[0].logit_scale / p.softcap, rows[1].logit_scale / p.softcap};
    const float outer = p.softcap * kLog2E;
#pragma unroll
    for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float x = s[n][e] * inner[e / 2];
        s[n][e] = outer * (Traits::kTensorCores ? Tanh(x) : tanhf(x));
      }
    }
  } else {
    const float scale[2] = {rows[0].logit_scale * kLog2E, rows[1].logit_scale * kLog2E};
#pragma unroll
    for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] *= scale[e / 2];
    }
  }
}

// Multiplies the logits or weights of new keys by `factor`, in the KV tile that begins at local key
// `first`.
template <typename Traits>
__device__ __forceinline__ void ScaleNewKeys(const AttentionKernelParams& p, const WorkUnit& unit,
                                             int first, float factor,
                                             float (&s)[Traits::kKeyTiles][4]) {
  if constexpr (Traits::kConverts) {
    const int first_new = FirstNewKey(p, unit.item);
    if (p.new_k == nullptr || first + Traits::kKeys <= first_new) return;
#pragma unroll
    for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first + n * 8 + threadIdx.x % 4 * 2 + e % 2;
        if (key >= first_new) s[n][e] *= factor;
      }
    }
  }
}

// Returns the position of key `key` for a row that sees it, or INT_MIN if the row does not see it.
// Ignores custom masks.
__device__ __forceinline__ int PositionSeen(const AttentionKernelParams& p, const WorkUnit& unit,
                                            const QueryRow& row, int key) {
  if (row.token < 0 || key >= unit.item.key_end) return INT_MIN;
  int position = KeyPosition(p, unit, key);
  if (unit.item.tail_len > 0 && key >= unit.item.prefix_len) {
    const uint64_t mask = p.tail_mask[row.token];
    const int bit = key - unit.item.prefix_len;
    if ((mask >> bit & 1) == 0) return INT_MIN;
    position =
        unit.item.key_start + unit.item.prefix_len + __popcll(mask & ((uint64_t{1} << bit) - 1));
  }
  if (position < row.first_seen || position > row.last_seen) return INT_MIN;
  if (p.sparse_stride > 0 && !InSparsePattern(p, unit, row, position)) return INT_MIN;
  return position;
}

// The ALiBi slope of a query, if each sequence has different slopes.
inline __device__ __noinline__ float SlopeOfSequence(const AttentionKernelParams& p,
                                                     const WorkUnit& unit, int token, int q_head) {
  const bool is_shared = unit.item.row == kSharedRow;
  const int64_t table_row = is_shared ? TableRowOf(p, RowOfToken(p, token)) : unit.item.table_row;
  return p.alibi_slopes[table_row * p.alibi_row_stride + q_head];
}

template <typename Traits>
__device__ __forceinline__ float SlopeOf(const AttentionKernelParams& p, const WorkUnit& unit,
                                         const QueryRow& row) {
  if constexpr (kServesRareTerms<Traits>) {
    if (p.alibi_row_stride != 0) {
      if (row.last_seen == INT_MIN) return 0.0f;  // a padded row of a shared item has no sequence
      return SlopeOfSequence(p, unit, row.token, row.q_head) * kLog2E;
    }
  }
  return p.alibi_slopes[row.q_head] * kLog2E;
}

// Computes the ALiBi terms of a lane's logits [n * 4 + e]: -inf for keys that the row does not see,
// custom masks aside. Neither unrolled nor inlined, because few batches need it.
template <typename Traits>
__device__ __noinline__ void FindTerms(const AttentionKernelParams& p, const WorkUnit& unit,
                                       const QueryRow& row0, const QueryRow& row1, int first,
                                       float* terms) {
#pragma unroll 1
  for (int i = 0; i < Traits::kKeyTiles * 4; ++i) {
    const int key = first + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    const QueryRow& row = i % 4 < 2 ? row0 : row1;
    const int position = PositionSeen(p, unit, row, key);
    float term = -INFINITY;
    if (position != INT_MIN) {
      const float slope = p.alibi_slopes ? SlopeOf<Traits>(p, unit, row) : 0.0f;
      term = -slope * fabsf(static_cast<float>(position - row.position));
    }
    terms[i] = term;
  }
}

// Adds ALiBi, and sets the logits of keys outside the row's positions to -inf. REQUIRES: key
// positions are consecutive, and there is no tail and no sparse pattern. This is nearly always the
// case.
template <typename Traits>
__device__ __forceinline__ void MaskInterval(const AttentionKernelParams& p, const WorkUnit& unit,
                                             const QueryRow& row, int first, int r,
                                             float (&s)[Traits::kKeyTiles][4]) {
  float slope = 0.0f;
  if (p.alibi_slopes && row.token >= 0) slope = SlopeOf<Traits>(p, unit, row);
  // Visible range in local keys, limited to the KV tile and the item.
  const int origin = unit.item.key_start;
  const int from = max(row.first_seen, origin + first) - origin;
  const int to =
      min(max(row.last_seen, origin + first - 1), origin + unit.item.key_end - 1) - origin;
  const int row_key = row.position - origin;
#pragma unroll
  for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int key = first + threadIdx.x % 4 * 2 + n * 8 + j;
      float& logit = s[n][r * 2 + j];
      const float distance = fabsf(static_cast<float>(key - row_key));
      logit = key >= from && key <= to ? logit - slope * distance : -INFINITY;
    }
  }
}

// The bits of the custom mask for one of a lane's rows and a KV tile: bit n * 2 + j is the lane's
// column n * 8 + l % 4 * 2 + j. All ones if the row has no mask. Does not read bytes past the bits
// of the item's keys. Not inlined, because few batches have a custom mask.
template <typename Traits>
__device__ __noinline__ uint32_t CustomMaskOf(const AttentionKernelParams& p, const WorkUnit& unit,
                                              int token, int first) {
  static_assert(Traits::kKeyTiles <= 16);
  if (token < 0) return 0;
  const WorkItem& item = unit.item;
  const int64_t offset = p.custom_mask_offset[item.row];
  if (offset < 0) return ~0u;
  const int64_t seq_len = item.prefix_len + item.tail_len;
  const int query = token - (item.first_token - item.query_begin);
  const int key = first + threadIdx.x % 4 * 2;
  const int64_t bit = query * seq_len + key;
  const uint8_t* const bytes = p.custom_mask + offset + bit / 8;
  const int shift = static_cast<int>(bit % 8);
  uint32_t seen = 0;
#pragma unroll 4
  for (int n = 0; n < Traits::kKeyTiles; ++n) {
    const int num_keys = item.key_end - (key + n * 8);
    if (num_keys <= 0) break;
    uint32_t pair = bytes[n] >> shift;
    if (shift == 7 && num_keys > 1) pair |= static_cast<uint32_t>(bytes[n + 1]) << 1;
    seen |= (pair & 3) << (n * 2);
  }
  return seen;
}

// Sets the logits of keys that the custom mask hides from a lane's rows to -inf.
template <typename Traits>
__device__ __forceinline__ void HideKeys(const AttentionKernelParams& p, const WorkUnit& unit,
                                         const QueryRow (&rows)[2], int first,
                                         float (&s)[Traits::kKeyTiles][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t bits = CustomMaskOf<Traits>(p, unit, rows[r].token, first);
#pragma unroll
    for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if ((bits >> (n * 2 + j) & 1) == 0) s[n][r * 2 + j] = -INFINITY;
      }
    }
  }
}

// Adds ALiBi, and sets the logits of keys that a row does not see to -inf. Serves any batch, with
// custom masks only if kServesRareTerms<Traits>. Returns a bit mask: bit n * 2 + j is set if some
// row of the warp sees the lane's column n * 8 + l % 4 * 2 + j.
template <typename Traits>
__device__ __forceinline__ uint32_t MaskLogits(const AttentionKernelParams& p, const WorkUnit& unit,
                                               const QueryRow (&rows)[2], int first,
                                               float (&s)[Traits::kKeyTiles][4]) {
  if (unit.item.tail_len == 0 && p.world == 1 && p.sparse_stride == 0) {
    MaskInterval<Traits>(p, unit, rows[0], first, 0, s);
    MaskInterval<Traits>(p, unit, rows[1], first, 1, s);
  } else {
    const QueryRow row0 = rows[0];
    const QueryRow row1 = rows[1];
    float terms[Traits::kKeyTiles * 4];
    FindTerms<Traits>(p, unit, row0, row1, first, terms);
#pragma unroll
    for (int i = 0; i < Traits::kKeyTiles * 4; ++i) {
      // Adding -inf is not sufficient: the logit of an unseen key may be NaN.
      float& logit = s[i / 4][i % 4];
      logit = terms[i] == -INFINITY ? -INFINITY : logit + terms[i];
    }
  }
  if constexpr (kServesRareTerms<Traits>) {
    if (p.custom_mask != nullptr) HideKeys<Traits>(p, unit, rows, first, s);
  }

  uint32_t seen = 0;
#pragma unroll
  for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const bool seen_by_lane = s[n][j] != -INFINITY || s[n][2 + j] != -INFINITY;
      // Lanes with the same l % 4 hold the same columns.
      const uint32_t lanes = __ballot_sync(kFullWarp, seen_by_lane);
      if (lanes & 0x11111111u << threadIdx.x % 4) seen |= 1u << (n * 2 + j);
    }
  }
  return seen;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_LOGITS_CUH_
