#include "reprise/attention/metadata/cross_batch.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {

PagedBatch CrossBatch(const CrossBatchArgs& args) {
  return {.query_start_loc = args.rows.query_start_loc,
          .seq_lens = args.seq_lens,
          .table_row = args.rows.table_row,
          .block_table = args.table.entries,
          .block_table_stride = args.table.row_stride,
          .causal = false,
          .num_rows = args.rows.num_rows,
          .num_tokens = args.rows.num_tokens,
          .max_query_len = args.rows.max_query_len,
          .max_seq_len = args.max_encoder_len,
          .num_tables = args.table.num_tables,
          .max_blocks = args.table.max_blocks};
}

absl::Status CheckCrossBatch(const CrossBatchArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckTable(args.table));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("max_encoder_len", args.max_encoder_len, 0, TableCapacity(args.table)));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("rows.num_rows", args.rows.num_rows, 0));
  if (args.rows.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(
      CheckGiven({{"rows.seq_lens", args.rows.seq_lens}, {"seq_lens", args.seq_lens}}));
  if (args.table.num_tables == 0) return absl::OkStatus();
  return CheckGiven("encoder_lens", args.encoder_lens);
}

void CrossBatchOnHost(const CrossBatchArgs& args) {
  int32_t num_faults = 0;
  for (int r = 0; r < args.rows.num_rows; ++r) {
    const CrossRow row = CrossRowOf(args, r);
    WriteCrossRow(args, r, row);
    num_faults += row.fault != RowFault::kNone;
  }
  if (args.num_faults) *args.num_faults = num_faults;
}

absl::StatusOr<PagedBatch> BuildCrossBatch(const CrossBatchArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckCrossBatch(args));
  FaultyRows faulty;
  for (int r = 0; r < args.rows.num_rows; ++r) faulty.Add(r, CrossRowOf(args, r).fault);
  REPRISE_RETURN_IF_ERROR(faulty.ToStatus([&](int r) {
    const int32_t table_row = args.rows.table_row ? args.rows.table_row[r] : r;
    std::string text = absl::StrCat("table row ", table_row, " of ", args.table.num_tables);
    if (!HasTableRow(args.table, table_row)) return text;
    return absl::StrCat(text, ", encoder_len ", args.encoder_lens[table_row], ", max_encoder_len ",
                        args.max_encoder_len);
  }));
  CrossBatchOnHost(args);
  return CrossBatch(args);
}

}  // namespace reprise
