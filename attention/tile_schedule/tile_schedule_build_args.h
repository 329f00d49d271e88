// Input of a tile schedule's builder, from a batch and a layer: plain data for host and device.

#ifndef REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_BUILD_ARGS_H_
#define REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_BUILD_ARGS_H_

#include <cstdint>
#include <optional>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"

namespace reprise {

// The window of a layer class: the fields window_left and window_right of AttentionParams.
struct LayerWindow {
  std::optional<int> left = std::nullopt;
  std::optional<int> right = std::nullopt;
};

inline LayerWindow WindowOf(const AttentionParams& layer) {
  return {layer.window_left, layer.window_right};
}

// The query lengths of the rows in a schedule, inclusive. The schedule omits all other rows.
struct QueryLens {
  int least = 1;
  int most = 0x7fffffff;
};

// The arrays of PagedBatch; a ragged batch has key_start_loc instead of seq_lens and key_start.
// With custom masks any key may be visible, so rows are split like those of a batch that is not
// causal and has no common prefix.
struct TileScheduleRows {
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  const int32_t* key_start_loc;
  const int32_t* key_start;
  const int32_t* table_row;
  const int32_t* query_positions;
  const int32_t* tail_len;
  const uint64_t* tail_mask;
  const int32_t* common_prefix_len;
  KeyPositions key_positions;
  int num_rows;
  int causal;        // 0 or 1
  int window_left;   // -1: none
  int window_right;  // -1: none
};

inline TileScheduleRows RowsOf(const PagedBatch& batch, const LayerWindow& window) {
  return {.query_start_loc = batch.query_start_loc,
          .seq_lens = batch.seq_lens,
          .key_start_loc = nullptr,
          .key_start = batch.key_start,
          .table_row = batch.table_row,
          .query_positions = batch.query_positions,
          .tail_len = batch.tail_len,
          .tail_mask = batch.tail_mask,
          .common_prefix_len = batch.custom_mask ? nullptr : batch.common_prefix_len,
          .key_positions = batch.key_positions,
          .num_rows = batch.num_rows,
          .causal = batch.causal && !batch.custom_mask,
          .window_left = window.left.value_or(-1),
          .window_right = window.right.value_or(-1)};
}

inline TileScheduleRows RowsOf(const RaggedBatch& batch, const LayerWindow& window) {
  return {.query_start_loc = batch.query_start_loc,
          .seq_lens = nullptr,
          .key_start_loc = batch.key_start_loc,
          .key_start = nullptr,
          .table_row = nullptr,
          .query_positions = batch.query_positions,
          .tail_len = nullptr,
          .tail_mask = nullptr,
          .common_prefix_len = nullptr,
          .key_positions = {},
          .num_rows = batch.num_rows,
          .causal = batch.causal && !batch.custom_mask,
          .window_left = window.left.value_or(-1),
          .window_right = window.right.value_or(-1)};
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_BUILD_ARGS_H_
