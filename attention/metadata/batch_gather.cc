#include "reprise/attention/metadata/batch_gather.h"

#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {

PagedBatch GatherBatch(const BatchGatherArgs& args) {
  PagedBatch batch =
      ArraysBatch(args.arrays, args.table, args.num_rows, args.num_tokens, args.max_query_len);
  if (args.key_start) batch.key_start = args.arrays.key_start;
  batch.max_seq_len = args.max_seq_len;
  return batch;
}

absl::Status CheckBatchGather(const BatchGatherArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckTable(args.table));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_query_len", args.max_query_len, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_seq_len", args.max_seq_len, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("write_window", args.write_window, 0));
  if (args.num_rows > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven({{"table_row", args.table_row},
                                        {"query_lens", args.query_lens},
                                        {"seq_lens", args.seq_lens}}));
    if (args.key_start) {
      REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.key_start", args.arrays.key_start));
    }
  }
  return CheckOutputArrays(args.arrays, args.num_rows, args.num_tokens);
}

void BatchGatherOnHost(const BatchGatherArgs& args) {
  const RowArgs rows = GatherRowArgs(args);
  const int num_live_rows = NumLiveRows(args);
  const RowCounts counts = WriteRowsInOrder(
      rows,
      [&](int r) {
        CheckedRow row;
        if (r < num_live_rows) row = GatheredRow(args, rows, r);
        if (row.is_live() && !HasBlocks(SerialLanes(), rows, row)) row.fault = RowFault::kNoBlock;
        return row;
      },
      [](int, const CheckedRow&, int) { return 0; }, [](int, const CheckedRow&) {});
  if (args.num_faults) *args.num_faults = counts.num_faults;
}

}  // namespace reprise
