#include "reprise/attention/metadata/batch_gather.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::Status CheckLengths(const BatchGatherArgs& args) {
  if (args.seq_lens && args.table_seq_lens) {
    return absl::InvalidArgumentError("table_seq_lens must not be given together with seq_lens");
  }
  const bool by_table_row = args.table_seq_lens || args.table.num_tables == 0;
  return by_table_row ? absl::OkStatus() : CheckGiven("seq_lens", args.seq_lens);
}

absl::Status CheckKeyStart(const BatchGatherArgs& args) {
  if (!args.key_start) return absl::OkStatus();
  if (args.key_positions.world > 1 || args.part != KeyPart::kAll) {
    return absl::InvalidArgumentError(
        "key_start must not be given with several ranks or KeyPart::kContext");
  }
  return CheckGiven("arrays.key_start", args.arrays.key_start);
}

std::string DescribeRow(const BatchGatherArgs& args, int r) {
  const int32_t table_row = args.table_row[r];
  std::string text = absl::StrCat("table row ", table_row);
  if (!HasTableRow(args.table, table_row)) {
    return absl::StrCat(text, " of ", args.table.num_tables);
  }
  if (args.key_start) absl::StrAppend(&text, ", key_start ", args.key_start[r]);
  return absl::StrCat(text, ", seq_len ",
                      args.table_seq_lens ? args.table_seq_lens[table_row] : args.seq_lens[r],
                      ", query_len ", int64_t{args.query_lens[r]} + args.num_verified,
                      ", max_query_len ", args.max_query_len, ", limit ",
                      ContextLimit(args.table, args.max_seq_len, args.key_positions),
                      ", num_tokens ", args.num_tokens);
}

}  // namespace

PagedBatch GatherBatch(const BatchGatherArgs& args) {
  PagedBatch batch =
      ArraysBatch(args.arrays, args.table, args.num_rows, args.num_tokens, args.max_query_len);
  if (args.key_start) batch.key_start = args.arrays.key_start;
  batch.max_seq_len =
      static_cast<int>(std::min<int64_t>(TableCapacity(args.table), args.max_seq_len));
  const bool by_rank = args.key_positions.world > 1;
  if (by_rank || args.part == KeyPart::kContext) batch.query_positions = args.arrays.positions;
  batch.key_positions = args.key_positions;
  batch.causal = args.part == KeyPart::kAll;
  return batch;
}

absl::Status CheckBatchGather(const BatchGatherArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckTable(args.table));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_verified", args.num_verified, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_query_len", args.max_query_len, args.num_verified));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_seq_len", args.max_seq_len, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("write_window", args.write_window, 0));
  REPRISE_RETURN_IF_ERROR(CheckRanks(args.key_positions));
  if (args.num_rows > 0) {
    REPRISE_RETURN_IF_ERROR(
        CheckGiven({{"table_row", args.table_row}, {"query_lens", args.query_lens}}));
    REPRISE_RETURN_IF_ERROR(CheckLengths(args));
    REPRISE_RETURN_IF_ERROR(CheckKeyStart(args));
  }
  if (args.tokens != nullptr) {
    const int width = args.max_query_len - (args.first_token != nullptr ? 1 : 0);
    REPRISE_RETURN_IF_ERROR(
        CheckRowStride("token_stride", args.token_stride, width, args.num_rows));
  }
  return CheckOutputArrays(args.arrays, args.num_rows, args.num_tokens);
}

void BatchGatherOnHost(const BatchGatherArgs& args) {
  const RankRowArgs rows = GatherRowArgs(args);
  const int num_live_rows = NumLiveRows(args);
  int64_t start = 0;
  int32_t num_faults = 0;
  for (int r = 0; r < args.num_rows; ++r) {
    const CheckedRow row = GatheredRow(args, rows, num_live_rows, r);
    const RowFault fault = WriteGatheredRow(SerialLanes(), args, rows, r, row, start);
    num_faults += fault != RowFault::kNone;
    start += row.query_len;
  }
  FinishTokens(args.arrays, args.num_rows, args.num_tokens, start);
  if (args.num_faults) *args.num_faults = num_faults;
}

absl::StatusOr<PagedBatch> BuildBatchGather(const BatchGatherArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckBatchGather(args));
  REPRISE_RETURN_IF_ERROR(CheckRowFaults(args.arrays.row_faults, args.num_rows));
  BatchGatherOnHost(args);
  REPRISE_RETURN_IF_ERROR(FirstFault(args.arrays.row_faults, args.num_rows,
                                     [&](int r) { return DescribeRow(args, r); }));
  return GatherBatch(args);
}

}  // namespace reprise
