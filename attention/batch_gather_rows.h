// The rules of attention/batch_gather.h for one row and one token, for host and device.

#ifndef ATTENTION_BATCH_GATHER_ROWS_H_
#define ATTENTION_BATCH_GATHER_ROWS_H_

#include <cstdint>

#include "attention/batch_gather.h"

namespace reprise {

enum class GatherRowKind : int8_t { kLive, kEmpty, kBad };

struct GatherRow {
  GatherRowKind kind = GatherRowKind::kEmpty;
  int32_t table_row = 0;
  int32_t query_len = 0;
  int32_t num_computed = 0;
  int32_t key_start = 0;
};

constexpr int NumLiveRows(const BatchGather& gather) {
  if (!gather.num_live_rows) return gather.num_rows;
  const int32_t count = *gather.num_live_rows;
  return count < 0 ? 0 : (count < gather.num_rows ? count : gather.num_rows);
}

// All but its blocks, and whether it fits behind the rows before it. REQUIRES: 0 <= r < live rows.
constexpr GatherRow ReadGatherRow(const BatchGather& gather, int r) {
  GatherRow row;
  row.query_len = gather.query_lens[r];
  if (row.query_len == 0) return row;
  row.kind = GatherRowKind::kBad;
  if (row.query_len < 0 || row.query_len > gather.num_tokens) return row;
  row.table_row = gather.table_row[r];
  if (row.table_row < 0 || row.table_row >= gather.table.num_tables) return row;
  row.key_start = gather.key_start ? gather.key_start[r] : 0;
  const int64_t num_computed =
      int64_t{gather.seq_lens[r]} - CountedTokens(gather.seq_len_form, 1, row.query_len - 1);
  const int64_t width = static_cast<int64_t>(gather.table.max_blocks) * gather.table.block_size;
  const int64_t longest = width < INT32_MAX ? width : INT32_MAX;
  if (row.key_start < 0 || num_computed < 0) return row;
  if (row.key_start + num_computed + row.query_len > longest) return row;
  row.num_computed = static_cast<int32_t>(num_computed);
  row.kind = GatherRowKind::kLive;
  return row;
}

constexpr int32_t FirstNewColumn(const BatchGather& gather, const GatherRow& row) {
  return (row.key_start + row.num_computed) / gather.table.block_size;
}

constexpr int32_t LastNewColumn(const BatchGather& gather, const GatherRow& row) {
  return (row.key_start + row.num_computed + row.query_len - 1) / gather.table.block_size;
}

constexpr int32_t BlockAt(const BatchGather& gather, int32_t table_row, int32_t column) {
  return gather.table.entries[table_row * gather.table.row_stride + column];
}

constexpr bool IsBlockOfCache(const BatchGather& gather, int32_t block) {
  return block >= 0 && block < gather.num_blocks;
}

// Of the row's i-th new token.
constexpr int64_t SlotOfNewToken(const BatchGather& gather, const GatherRow& row, int32_t i) {
  if (gather.write_window > 0 && i < row.query_len - gather.write_window) return -1;
  const int32_t place = row.key_start + row.num_computed + i;
  const int32_t block = BlockAt(gather, row.table_row, place / gather.table.block_size);
  if (block == 0) return -1;
  return static_cast<int64_t>(block) * gather.table.block_size + place % gather.table.block_size;
}

}  // namespace reprise

#endif  // ATTENTION_BATCH_GATHER_ROWS_H_
