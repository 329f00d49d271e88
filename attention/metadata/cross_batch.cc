#include "attention/metadata/cross_batch.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace reprise {

absl::StatusOr<PagedBatch> CrossBatchOver(const CrossBatch& cross) {
  if (cross.table.block_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("table.block_size: expected at least 1, got ", cross.table.block_size));
  }
  const int64_t width = int64_t{cross.table.max_blocks} * cross.table.block_size;
  if (cross.max_encoder_len < 0 || cross.max_encoder_len > width) {
    return absl::InvalidArgumentError(absl::StrCat("max_encoder_len: expected 0 to ", width,
                                                   " (max_blocks * block_size), got ",
                                                   cross.max_encoder_len));
  }
  const bool has_lens = cross.encoder_lens || cross.table.num_tables <= 0;
  if (cross.rows.num_rows > 0 && (!has_lens || !cross.seq_lens || !cross.rows.seq_lens)) {
    return absl::InvalidArgumentError(
        "encoder_lens, seq_lens, rows.seq_lens: expected arrays, got an absent one");
  }
  return PagedBatch{.query_start_loc = cross.rows.query_start_loc,
                    .seq_lens = cross.seq_lens,
                    .table_row = cross.rows.table_row,
                    .block_table = cross.table.entries,
                    .block_table_stride = cross.table.row_stride,
                    .causal = false,
                    .num_rows = cross.rows.num_rows,
                    .num_tokens = cross.rows.num_tokens,
                    .max_query_len = cross.rows.max_query_len,
                    .max_seq_len = cross.max_encoder_len,
                    .num_tables = cross.table.num_tables,
                    .max_blocks = cross.table.max_blocks};
}

absl::StatusOr<PagedBatch> BuildCrossBatch(const CrossBatch& cross) {
  REPRISE_ASSIGN_OR_RETURN(const PagedBatch batch, CrossBatchOver(cross));
  for (int r = 0; r < cross.rows.num_rows; ++r) {
    const int32_t seq_len = CrossSeqLen(cross, r);
    if (seq_len < 0) {
      const int32_t table_row = cross.rows.table_row ? cross.rows.table_row[r] : r;
      if (table_row < 0 || table_row >= cross.table.num_tables) {
        return absl::InvalidArgumentError(absl::StrCat("rows.table_row[", r, "]: expected 0 to ",
                                                       cross.table.num_tables - 1, ", got ",
                                                       table_row));
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "encoder_lens[", table_row, "] of row ", r, ": expected 0 to ", cross.max_encoder_len,
          " (max_encoder_len), got ", cross.encoder_lens[table_row]));
    }
    cross.seq_lens[r] = seq_len;
  }
  return batch;
}

}  // namespace reprise
