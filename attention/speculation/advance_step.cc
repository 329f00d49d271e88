#include "reprise/attention/speculation/advance_step.h"

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {

PagedBatch AdvancedBatch(const AdvanceStepArgs& args) {
  return ArraysBatch(args.arrays, args.table, args.num_rows, args.num_tokens,
                     /*max_query_len=*/1);
}

absl::Status CheckAdvanceStep(const AdvanceStepArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckTable(args.table));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, args.num_rows));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_context_len", args.max_context_len, 1));
  if (args.num_rows > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven(
        {{"seq_lens", args.seq_lens}, {"table_row", args.table_row}, {"sampled", args.sampled}}));
  }
  if (HasPacked(args)) {
    REPRISE_RETURN_IF_ERROR(CheckEqual("packed.num_rows", args.packed.num_rows, args.num_rows));
    REPRISE_RETURN_IF_ERROR(
        CheckEqual("packed.block_size", args.packed.block_size, args.table.block_size));
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("packed.max_indices", args.packed.max_indices, 0));
    if (args.num_rows > 0) {
      REPRISE_RETURN_IF_ERROR(CheckGiven({{"packed.block_indices", args.packed.block_indices},
                                          {"packed.last_block_len", args.packed.last_block_len}}));
    }
  }
  return CheckOutputArrays(args.arrays, args.num_rows, args.num_tokens);
}

void AdvanceStepOnHost(const AdvanceStepArgs& args) {
  const RowArgs rows = AdvanceRowArgs(args);
  // In place: a row is read before its entries are overwritten, because each previous row writes at
  // most one token.
  int32_t token_id = 0;
  int64_t num_packed = 0;
  bool is_full = false;
  WriteRowsInOrder(
      rows,
      [&](int r) {
        token_id = args.sampled[r];
        CheckedRow row = AdvancedRowOf(SerialLanes(), args, rows, r);
        if (!HasPacked(args) || !row.is_live()) return row;
        is_full = is_full || num_packed + PackedBlocksOf(args, row) > args.packed.max_indices;
        if (is_full) row.fault = RowFault::kNoRoom;
        return row;
      },
      [&](int, const CheckedRow&, int) { return token_id; },
      [&](int r, const CheckedRow& row) {
        if (!HasPacked(args)) return;
        WritePackedRow(SerialLanes(), args, r, row, num_packed);
        num_packed += PackedBlocksOf(args, row);
      });
  if (HasPacked(args)) {
    args.packed.block_indptr[args.num_rows] = static_cast<int32_t>(num_packed);
  }
}

absl::StatusOr<PagedBatch> AdvanceStep(const AdvanceStepArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAdvanceStep(args));
  REPRISE_RETURN_IF_ERROR(CheckRowFaults(args.arrays.row_faults, args.num_rows));
  AdvanceStepOnHost(args);
  REPRISE_RETURN_IF_ERROR(FirstFault(args.arrays.row_faults, args.num_rows, [&](int row) {
    return absl::StrCat("limit ", ContextLimit(args.table, args.max_context_len), ", num_tables ",
                        args.table.num_tables, ", num_blocks ", args.table.num_blocks,
                        ", packed.max_indices ", args.packed.max_indices, ", sampled ",
                        args.sampled[row]);
  }));
  return AdvancedBatch(args);
}

}  // namespace reprise
