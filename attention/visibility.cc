#include "reprise/attention/visibility.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "reprise/base/divisor.h"

namespace reprise {
namespace {

bool InWindow(const AttentionParams& layer, int64_t query_position, int64_t key_position) {
  if (layer.window_left && key_position < query_position - *layer.window_left) return false;
  if (layer.window_right && key_position > query_position + *layer.window_right) return false;
  return true;
}

bool InSparsePattern(const AttentionParams& layer, int q_head, int64_t query_position,
                     int64_t key_position) {
  if (!layer.is_sparse()) return true;
  const BlockSparseParams& sparse = *layer.sparse;
  const int64_t query_block = FloorDiv(query_position, sparse.block_size);
  const int64_t key_block = FloorDiv(key_position, sparse.block_size);
  if (key_block > query_block - sparse.local_blocks) return true;
  const int64_t step = sparse.head_sliding_step;
  const int64_t heads = step >= 0 ? layer.num_q_heads : layer.num_kv_heads;
  const int64_t head = step >= 0 ? q_head : q_head / layer.group_size();
  const int64_t offset = (sparse.tp_rank * heads + head) * (step >= 0 ? step : -step) + 1;
  return (key_block + offset) % sparse.vertical_stride == 0;
}

// The first local key at or after `position`; may be outside the row.
int64_t FirstKeyAtOrAfter(const BatchRow& row, int64_t position) {
  const KeyPositions& ranks = row.key_positions;
  if (ranks.world == 1) return position - row.key_start;
  if (position <= 0) return -row.key_start;
  // Clamps `position` to the rank's run within its cycle of world * interleave positions.
  const int64_t cycle = static_cast<int64_t>(ranks.world) * ranks.interleave;
  const int64_t run_begin = static_cast<int64_t>(ranks.rank) * ranks.interleave;
  const int64_t offset = std::clamp<int64_t>(position % cycle - run_begin, 0, ranks.interleave);
  return position / cycle * ranks.interleave + offset - row.key_start;
}

// The mask of row `row`; null if the row has no mask.
template <typename Batch>
const uint8_t* CustomMaskOf(const Batch& batch, int row) {
  if (!batch.custom_mask || batch.custom_mask_offset[row] < 0) return nullptr;
  return batch.custom_mask + batch.custom_mask_offset[row];
}

bool InCustomMask(const BatchRow& row, int query, int key) {
  if (!row.custom_mask) return true;
  const int64_t bit = int64_t{query} * row.seq_len + key;
  return (row.custom_mask[bit / 8] >> (bit % 8) & 1) != 0;
}

// Whether causality limits the keys of the row's queries.
bool IsCausal(const BatchRow& row) { return row.causal && row.tail_len == 0 && !row.custom_mask; }

}  // namespace

BatchRow RowOf(const PagedBatch& batch, int row) {
  const int first_token = batch.query_start_loc[row];
  const int query_len = batch.query_start_loc[row + 1] - first_token;
  if (batch.seq_lens[row] == 0) return {.first_token = first_token, .query_len = query_len};
  return {.first_token = first_token,
          .query_len = query_len,
          .seq_len = batch.seq_lens[row],
          .key_start = batch.key_start ? batch.key_start[row] : 0,
          .table_row = batch.table_row ? batch.table_row[row] : row,
          .tail_len = batch.tail_len ? batch.tail_len[row] : 0,
          .query_positions = batch.query_positions ? batch.query_positions + first_token : nullptr,
          .tail_mask = batch.tail_mask ? batch.tail_mask + first_token : nullptr,
          .custom_mask = CustomMaskOf(batch, row),
          .key_positions = batch.key_positions,
          .causal = batch.causal};
}

BatchRow RowOf(const RaggedBatch& batch, int row) {
  const int first_token = batch.query_start_loc[row];
  const int first_key = batch.key_start_loc[row];
  const int seq_len = batch.key_start_loc[row + 1] - first_key;
  return {.first_token = first_token,
          .query_len = batch.query_start_loc[row + 1] - first_token,
          .seq_len = seq_len,
          .table_row = row,
          .first_key = first_key,
          .query_positions = batch.query_positions ? batch.query_positions + first_token : nullptr,
          .custom_mask = seq_len > 0 ? CustomMaskOf(batch, row) : nullptr,
          .causal = batch.causal};
}

int64_t QueryPosition(const BatchRow& row, int query) {
  if (row.query_positions) return row.query_positions[query];
  return row.key_start + row.seq_len - row.query_len + query;
}

int64_t OrdinaryKeyPosition(const BatchRow& row, int64_t key) {
  const KeyPositions& ranks = row.key_positions;
  const int64_t global = row.key_start + key;
  if (ranks.world == 1) return global;
  return (global / ranks.interleave * ranks.world + ranks.rank) * ranks.interleave +
         global % ranks.interleave;
}

std::optional<int64_t> KeyPosition(const AttentionParams& layer, const BatchRow& row, int query,
                                   int q_head, int key) {
  const int64_t query_position = QueryPosition(row, query);
  int64_t key_position = OrdinaryKeyPosition(row, key);
  const int tail_begin = row.seq_len - row.tail_len;
  if (row.tail_len > 0 && key >= tail_begin) {
    const int bit = key - tail_begin;
    const uint64_t mask = row.tail_mask[query];
    if ((mask >> bit & 1) == 0) return std::nullopt;
    const int seen_before = std::popcount(mask & ((uint64_t{1} << bit) - 1));
    key_position = row.key_start + tail_begin + seen_before;
  } else if (IsCausal(row) && key_position > query_position) {
    return std::nullopt;
  }
  if (!InCustomMask(row, query, key)) return std::nullopt;
  if (!InWindow(layer, query_position, key_position)) return std::nullopt;
  if (!InSparsePattern(layer, q_head, query_position, key_position)) return std::nullopt;
  return key_position;
}

std::vector<VisibleKey> VisibleKeys(const AttentionParams& layer, const BatchRow& row, int query,
                                    int q_head) {
  std::vector<VisibleKey> keys;
  for (int local = 0; local < row.seq_len; ++local) {
    if (const std::optional<int64_t> position = KeyPosition(layer, row, query, q_head, local)) {
      keys.push_back({local, *position});
    }
  }
  return keys;
}

bool IsInterval(const AttentionParams& layer, const BatchRow& row) {
  return row.tail_len == 0 && !row.custom_mask && !layer.is_sparse();
}

KeyRange KeyInterval(const AttentionParams& layer, const BatchRow& row, int query) {
  const int64_t query_position = QueryPosition(row, query);
  // Positions [first, last] within causality and the window.
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;
  const int64_t first = layer.window_left ? query_position - *layer.window_left : -kFar;
  int64_t last = layer.window_right ? query_position + *layer.window_right : kFar;
  if (IsCausal(row)) last = std::min(last, query_position);

  const int64_t prefix_end =
      row.tail_len > 0 ? std::max(0, row.seq_len - row.tail_len) : row.seq_len;
  int64_t begin =
      std::clamp<int64_t>(first == -kFar ? 0 : FirstKeyAtOrAfter(row, first), 0, prefix_end);
  int64_t end = std::clamp<int64_t>(last == kFar ? prefix_end : FirstKeyAtOrAfter(row, last + 1), 0,
                                    prefix_end);
  // The positions of tail keys depend on their path, so no tail key is excluded here.
  if (row.tail_len > 0) end = row.seq_len;
  if (end <= begin) return {};
  return {static_cast<int>(begin), static_cast<int>(end)};
}

}  // namespace reprise
