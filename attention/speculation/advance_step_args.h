// Arguments of AdvanceStep, and the functions that advance one row. Shared by the host and device
// forms (attention/speculation/advance_step.h).

#ifndef REPRISE_ATTENTION_SPECULATION_ADVANCE_STEP_ARGS_H_
#define REPRISE_ATTENTION_SPECULATION_ADVANCE_STEP_ARGS_H_

#include <cstdint>

#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/attention/metadata/batch_rows.h"
#include "reprise/base/host_device.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

struct AdvanceStepArgs {
  // The previous step. These may be the output arrays.
  const int32_t* seq_lens = nullptr;   // [num_rows] includes the step's tokens; 0: padded row
  const int32_t* table_row = nullptr;  // [num_rows]
  const int32_t* sampled = nullptr;    // [num_rows] token sampled from each row's last logits

  BlockTableView table = {};
  int64_t max_context_len = 0;
  int num_rows = 0;
  int num_tokens = 0;       // size of the arrays; at least num_rows
  BatchArrays arrays = {};  // the next step

  // The packed table of the next step; absent if block_indptr is null. Lists the blocks of each
  // row's keys, including the block of the new token. block_indices has room for max_indices
  // entries; entries after the last row's blocks are not written. num_rows and block_size must
  // equal the batch's num_rows and the table's block_size.
  MutablePackedBlockTable packed = {};
};

constexpr bool HasPacked(const AdvanceStepArgs& args) {
  return args.packed.block_indptr != nullptr;
}

// Returns the number of blocks of a row of the next step in the packed table.
constexpr int32_t PackedBlocksOf(const AdvanceStepArgs& args, const CheckedRow& row) {
  if (!row.is_live()) return 0;
  return NumBlocksFor(row.context_len + 1, args.table.block_size);
}

// Writes a row of the packed table. `first` is the index of the row's first block.
template <typename Lanes>
REPRISE_HOST_DEVICE void WritePackedRow(const Lanes& lanes, const AdvanceStepArgs& args,
                                        int row_idx, const CheckedRow& row, int64_t first) {
  const int32_t num_blocks = PackedBlocksOf(args, row);
  const int32_t* const entries = args.table.entries + row.table_row * args.table.row_stride;
  int32_t* const packed = args.packed.block_indices + first;
  lanes.ForEach(num_blocks, [&](int i) { packed[i] = entries[i]; });
  lanes.ForEach(1, [&](int) {
    args.packed.block_indptr[row_idx] = static_cast<int32_t>(first);
    args.packed.last_block_len[row_idx] =
        num_blocks == 0 ? 0 : row.context_len + 1 - (num_blocks - 1) * args.table.block_size;
  });
}

constexpr RowArgs AdvanceRowArgs(const AdvanceStepArgs& args) {
  RowArgs rows;
  rows.table = args.table;
  rows.max_context_len = args.max_context_len;
  rows.num_rows = args.num_rows;
  rows.num_tokens = args.num_tokens;
  rows.max_query_len = 1;
  rows.arrays = args.arrays;
  return PrepareRows(rows);
}

// Returns a row of the next step: a row with the sampled token, or an inert row.
template <typename Lanes>
REPRISE_HOST_DEVICE CheckedRow AdvancedRowOf(const Lanes& lanes, const AdvanceStepArgs& args,
                                             const RowArgs& rows, int row_idx) {
  RowRequest request;
  const int32_t seq_len = args.seq_lens[row_idx];
  const int32_t table_row = args.table_row[row_idx];
  const int32_t token_id = args.sampled[row_idx];
  if (seq_len != 0) {
    request = {.is_padded = false, .table_row = table_row, .context_len = seq_len, .query_len = 1};
  }
  CheckedRow row = CheckRow(rows, request);
  if (!row.is_live()) return row;
  if (token_id < 0) {
    row.fault = RowFault::kToken;
  } else if (!HasBlocks(lanes, rows, row)) {
    row.fault = RowFault::kNoBlock;
  }
  return row;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_ADVANCE_STEP_ARGS_H_
