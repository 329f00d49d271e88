#include "attention/batch_tables.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

absl::Status CheckHolds(absl::string_view name, int64_t got, int64_t needed) {
  if (got >= needed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected at least ", needed, ", got ", got));
}

TableRow RowOf(const PagedBatch& batch, const BlockTableView& table, int row,
               const TableSelection& selection) {
  const bool all = selection.blocks == TableBlocks::kSeqLen;
  const int query_len = all ? 0 : batch.query_start_loc[row + 1] - batch.query_start_loc[row];
  return TableRowOf(batch.seq_lens[row], query_len, table.block_size, selection);
}

absl::Status CheckSelection(const TableSelection& selection) {
  if (selection.blocks != TableBlocks::kWindow) return absl::OkStatus();
  return CheckHolds("selection.window_left", selection.window_left, 0);
}

const int32_t* BlocksOf(const PagedBatch& batch, const BlockTableView& table, int row) {
  return table.entries + (batch.table_row ? batch.table_row[row] : row) * table.row_stride;
}

}  // namespace

absl::Status GatherPaddedTable(const PagedBatch& batch, const BlockTableView& table,
                               const MutablePaddedBlockTable& padded,
                               const TableSelection& selection) {
  REPRISE_RETURN_IF_ERROR(CheckSelection(selection));
  REPRISE_RETURN_IF_ERROR(CheckHolds("padded.row_stride", padded.row_stride, padded.max_blocks));
  const int64_t size =
      batch.num_rows == 0 ? 0 : (batch.num_rows - 1) * padded.row_stride + padded.max_blocks;
  REPRISE_RETURN_IF_ERROR(
      CheckHolds("padded.entries", static_cast<int64_t>(padded.entries.size()), size));
  REPRISE_RETURN_IF_ERROR(
      CheckHolds("padded.seq_lens", static_cast<int64_t>(padded.seq_lens.size()), batch.num_rows));
  for (int row = 0; row < batch.num_rows; ++row) {
    const int num_blocks = RowOf(batch, table, row, selection).num_blocks;
    if (num_blocks <= padded.max_blocks) continue;
    return absl::InvalidArgumentError(absl::StrCat("padded.max_blocks: expected at least ",
                                                   num_blocks, " for row ", row, ", got ",
                                                   padded.max_blocks));
  }
  for (int row = 0; row < batch.num_rows; ++row) {
    const TableRow own = RowOf(batch, table, row, selection);
    int32_t* out = padded.entries.data() + row * padded.row_stride;
    if (own.num_blocks > 0) {
      std::copy_n(BlocksOf(batch, table, row) + own.first_column, own.num_blocks, out);
    }
    std::fill(out + own.num_blocks, out + padded.max_blocks, kNullBlock.value());
    padded.seq_lens[row] = own.num_keys;
  }
  return absl::OkStatus();
}

absl::StatusOr<int> GatherPackedTable(const PagedBatch& batch, const BlockTableView& table,
                                      const MutablePackedBlockTable& packed,
                                      const TableSelection& selection) {
  REPRISE_RETURN_IF_ERROR(CheckSelection(selection));
  int64_t num_indices = 0;
  for (int row = 0; row < batch.num_rows; ++row) {
    num_indices += RowOf(batch, table, row, selection).num_blocks;
  }
  REPRISE_RETURN_IF_ERROR(CheckHolds("packed.block_indptr",
                                     static_cast<int64_t>(packed.block_indptr.size()),
                                     int64_t{batch.num_rows} + 1));
  REPRISE_RETURN_IF_ERROR(CheckHolds(
      "packed.block_indices", static_cast<int64_t>(packed.block_indices.size()), num_indices));
  REPRISE_RETURN_IF_ERROR(CheckHolds(
      "packed.last_block_len", static_cast<int64_t>(packed.last_block_len.size()), batch.num_rows));
  int32_t next = 0;
  packed.block_indptr[0] = 0;
  for (int row = 0; row < batch.num_rows; ++row) {
    const TableRow own = RowOf(batch, table, row, selection);
    if (own.num_blocks > 0) {
      std::copy_n(BlocksOf(batch, table, row) + own.first_column, own.num_blocks,
                  packed.block_indices.data() + next);
    }
    next += own.num_blocks;
    packed.block_indptr[row + 1] = next;
    packed.last_block_len[row] = own.LastBlockLen(table.block_size);
  }
  return next;
}

absl::Status FillKeyStartLoc(const PagedBatch& batch, absl::Span<int32_t> key_start_loc) {
  REPRISE_RETURN_IF_ERROR(CheckHolds("key_start_loc", static_cast<int64_t>(key_start_loc.size()),
                                     int64_t{batch.num_rows} + 1));
  int64_t total = 0;
  for (int row = 0; row < batch.num_rows; ++row) total += batch.seq_lens[row];
  if (total > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("seq_lens: expected a total of at most ",
                                                   INT32_MAX, " for key_start_loc, got ", total));
  }
  key_start_loc[0] = 0;
  for (int row = 0; row < batch.num_rows; ++row) {
    key_start_loc[row + 1] = key_start_loc[row] + batch.seq_lens[row];
  }
  return absl::OkStatus();
}

}  // namespace reprise
