#include "attention/batch_gather.h"

#include <glog/logging.h>

#include "attention/batch_gather_rows.h"

namespace reprise {
namespace {

bool HasGoodBlocks(const BatchGather& gather, const GatherRow& row) {
  for (int32_t column = FirstNewColumn(gather, row); column <= LastNewColumn(gather, row);
       ++column) {
    if (!IsBlockOfCache(gather, BlockAt(gather, row.table_row, column))) return false;
  }
  return true;
}

}  // namespace

PagedBatch BatchOver(const BatchGather& gather) {
  return {.query_start_loc = gather.out.query_start_loc,
          .seq_lens = gather.out.seq_lens,
          .table_row = gather.out.table_row,
          .key_start = gather.key_start ? gather.out.key_start : nullptr,
          .block_table = gather.table.entries,
          .block_table_stride = gather.table.row_stride,
          .num_rows = gather.num_rows,
          .num_tokens = gather.num_tokens,
          .max_query_len = gather.max_query_len,
          .max_seq_len = gather.max_seq_len,
          .num_tables = gather.table.num_tables,
          .max_blocks = gather.table.max_blocks};
}

void GatherBatchOnHost(const BatchGather& gather) {
  CHECK_GE(gather.num_rows, 0);
  CHECK_GE(gather.num_tokens, 0);
  CHECK_GE(gather.table.block_size, 1);
  const BatchGatherBuffers& out = gather.out;
  const int num_live_rows = NumLiveRows(gather);
  int32_t num_bad = 0;
  int32_t num_tokens = 0;
  bool is_full = false;
  for (int r = 0; r < gather.num_rows; ++r) {
    GatherRow row;
    if (r < num_live_rows) row = ReadGatherRow(gather, r);
    bool live = row.kind == GatherRowKind::kLive && HasGoodBlocks(gather, row);
    if (live && int64_t{num_tokens} + row.query_len > gather.num_tokens) is_full = true;
    live = live && !is_full;
    num_bad += row.kind != GatherRowKind::kEmpty && !live;
    out.query_start_loc[r] = num_tokens;
    out.seq_lens[r] = live ? row.num_computed + row.query_len : 0;
    out.table_row[r] = live ? row.table_row : 0;
    if (gather.key_start) out.key_start[r] = live ? row.key_start : 0;
    if (!live) continue;
    for (int32_t i = 0; i < row.query_len; ++i, ++num_tokens) {
      out.positions[num_tokens] = row.num_computed + i;
      out.slot_mapping[num_tokens] = SlotOfNewToken(gather, row, i);
    }
  }
  out.query_start_loc[gather.num_rows] = num_tokens;
  for (int t = num_tokens; t < gather.num_tokens; ++t) {
    out.positions[t] = 0;
    out.slot_mapping[t] = -1;
  }
  *out.num_bad_rows = num_bad;
}

}  // namespace reprise
