#include "reprise/attention/metadata/chain_batch.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

std::string DescribeRow(const ChainBatchArgs& args, int row) {
  const int32_t slot = args.slots[row];
  std::string text = absl::StrCat("table row ", slot);
  if (!HasTableRow(args.table, slot)) {
    return absl::StrCat(text, " of ", args.table.num_tables);
  }
  return absl::StrCat(text, ", seq_len ", args.seq_len[slot], ", query_len ",
                      int64_t{args.query_lens[row]} + args.num_certain, ", max_query_len ",
                      args.max_query_len, ", limit ",
                      ContextLimit(args.table, args.max_context_len, args.key_positions),
                      ", num_tokens ", args.num_tokens);
}

}  // namespace

PagedBatch ChainBatch(const ChainBatchArgs& args) {
  PagedBatch batch =
      ArraysBatch(args.arrays, args.table, args.num_rows, args.num_tokens, args.max_query_len);
  const bool by_rank = args.key_positions.world > 1;
  if (by_rank || args.part == KeyPart::kContext) batch.query_positions = args.arrays.positions;
  batch.key_positions = args.key_positions;
  batch.causal = args.part == KeyPart::kAll;
  return batch;
}

absl::Status CheckChainBatch(const ChainBatchArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckTable(args.table));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_certain", args.num_certain, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_query_len", args.max_query_len, args.num_certain));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_context_len", args.max_context_len, 1));
  REPRISE_RETURN_IF_ERROR(CheckRanks(args.key_positions));
  if (args.num_rows > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven({{"slots", args.slots}, {"query_lens", args.query_lens}}));
    if (args.table.num_tables > 0) {
      REPRISE_RETURN_IF_ERROR(CheckGiven("seq_len", args.seq_len));
    }
  }
  if (args.tokens != nullptr) {
    const int width = args.max_query_len - (args.first_token != nullptr ? 1 : 0);
    REPRISE_RETURN_IF_ERROR(
        CheckRowStride("token_stride", args.token_stride, width, args.num_rows));
  }
  return CheckOutputArrays(args.arrays, args.num_rows, args.num_tokens);
}

void ChainBatchOnHost(const ChainBatchArgs& args) {
  const RankRowArgs rows = ChainRowArgs(args);
  int64_t start = 0;
  for (int row = 0; row < args.num_rows; ++row) {
    WriteChainRow(SerialLanes(), args, rows, row, start);
    start += ChainRowOf(args, rows, row).query_len;
  }
  FinishTokens(args.arrays, args.num_rows, args.num_tokens, start);
}

absl::StatusOr<PagedBatch> BuildChainBatch(const ChainBatchArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckChainBatch(args));
  REPRISE_RETURN_IF_ERROR(CheckRowFaults(args.arrays.row_faults, args.num_rows));
  ChainBatchOnHost(args);
  REPRISE_RETURN_IF_ERROR(FirstFault(args.arrays.row_faults, args.num_rows,
                                     [&](int row) { return DescribeRow(args, row); }));
  return ChainBatch(args);
}

}  // namespace reprise
