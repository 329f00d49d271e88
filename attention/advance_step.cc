#include "attention/advance_step.h"

#include "absl/strings/str_cat.h"
#include "attention/builder_sizes.h"
#include "base/status_macros.h"

namespace reprise {

PagedBatch AdvancedBatchOf(const AdvanceStepArgs& args) {
  return {.query_start_loc = args.arrays.query_start_loc,
          .seq_lens = args.arrays.seq_lens,
          .table_row = args.arrays.table_row,
          .block_table = args.table.entries,
          .block_table_stride = args.table.row_stride,
          .num_rows = args.num_rows,
          .num_tokens = args.num_tokens,
          .max_query_len = 1,
          .max_seq_len = static_cast<int>(TableCapacity(args.table)),
          .num_tables = args.table.num_tables,
          .max_blocks = args.table.max_blocks};
}

absl::Status CheckAdvanceStepSizes(const AdvanceStepArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckTableSizes(args.table));
  REPRISE_RETURN_IF_ERROR(CheckSize("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckSize("num_tokens", args.num_tokens, args.num_rows));
  return CheckSize("max_context_len", args.max_context_len, 1);
}

void AdvanceStepOnHost(const AdvanceStepArgs& args) {
  int num_live = 0;
  for (int row = 0; row < args.num_rows; ++row) {
    // A row is read before anything of it or of a later row is written: row >= num_live.
    const AdvancedRow next = AdvancedRowOf(args, row);
    WriteAdvancedRow(args, row, num_live, next);
    if (next.slot >= 0) ++num_live;
  }
  FinishTokens(args.arrays, args.num_rows, args.num_tokens, num_live);
}

absl::StatusOr<PagedBatch> AdvanceStep(const AdvanceStepArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAdvanceStepSizes(args));
  AdvanceStepOnHost(args);
  REPRISE_RETURN_IF_ERROR(FirstFault(args.arrays.row_faults, args.num_rows, [&](int row) {
    return absl::StrCat("limit ", ContextLimit(args), ", num_tables ", args.table.num_tables,
                        ", num_blocks ", args.table.num_blocks, ", sampled ", args.sampled[row]);
  }));
  return AdvancedBatchOf(args);
}

}  // namespace reprise
