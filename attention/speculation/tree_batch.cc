#include "reprise/attention/speculation/tree_batch.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/metadata/batch_rows.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/attention/speculation/token_tree.h"
#include "reprise/attention/speculation/tree_check.h"
#include "reprise/attention/speculation/tree_tokens.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

std::string DescribeRow(const TreeBatchArgs& args, int row) {
  if (static_cast<RowFault>(args.arrays.row_faults[row]) == RowFault::kTree) {
    const absl::Status status = CheckTree(
        absl::MakeConstSpan(args.parents + row * args.parent_stride, args.num_nodes[row]));
    return std::string(status.message());
  }
  const int32_t slot = args.slots[row];
  if (!HasTableRow(args.table, slot)) {
    return absl::StrCat("table row ", slot, " of ", args.table.num_tables);
  }
  return absl::StrCat("table row ", slot, ", seq_len ", args.seq_len[slot], ", num_nodes ",
                      args.num_nodes[row], ", max_nodes ", args.max_nodes, ", limit ",
                      ContextLimit(args.table, args.max_context_len), ", num_tokens ",
                      args.num_tokens);
}

}  // namespace

PagedBatch TreeBatch(const TreeBatchArgs& args) {
  PagedBatch batch =
      ArraysBatch(args.arrays, args.table, args.num_rows, args.num_tokens, args.max_nodes);
  batch.query_positions = args.arrays.positions;
  batch.tail_len = args.arrays.tail_len;
  batch.tail_mask = args.arrays.tail_mask;
  return batch;
}

BatchGatherArgs ChainRowsOf(const TreeBatchArgs& args) {
  return {.table_row = args.slots,
          .query_lens = args.num_nodes,
          .table_seq_lens = args.seq_len,
          .seq_len_form = SeqLenForm::kBeforeStep,
          .first_token = args.first_token,
          .tokens = args.tokens,
          .token_stride = args.token_stride,
          .table = args.table,
          .past_limit = PastLimit::kClip,
          .null_blocks = NullBlocks::kByRetention,
          .num_rows = args.num_rows,
          .num_tokens = args.num_tokens,
          .max_query_len = args.max_nodes,
          .max_seq_len = static_cast<int>(std::min<int64_t>(args.max_context_len, INT32_MAX)),
          .arrays = args.arrays};
}

TreeTokensArgs TreeTokensOf(const TreeBatchArgs& args) {
  return {.arrays = args.arrays,
          .parents = {.nodes = args.parents, .row_stride = args.parent_stride},
          .num_rows = args.num_rows,
          .num_tokens = args.num_tokens,
          .max_nodes = args.max_nodes};
}

absl::Status CheckTreeBatch(const TreeBatchArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckTable(args.table));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckBetween("max_nodes", args.max_nodes, 1, kMaxTreeNodes));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_context_len", args.max_context_len, 1));
  if (args.num_rows > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven({{"slots", args.slots},
                                        {"num_nodes", args.num_nodes},
                                        {"parents", args.parents},
                                        {"arrays.tail_len", args.arrays.tail_len}}));
    if (args.table.num_tables > 0) {
      REPRISE_RETURN_IF_ERROR(CheckGiven("seq_len", args.seq_len));
    }
  }
  if (args.num_tokens > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.tail_mask", args.arrays.tail_mask));
  }
  if (args.parent_stride != 0) {
    REPRISE_RETURN_IF_ERROR(
        CheckRowStride("parent_stride", args.parent_stride, args.max_nodes, args.num_rows));
  }
  if (args.tokens != nullptr) {
    const int width = args.max_nodes - (args.first_token != nullptr ? 1 : 0);
    REPRISE_RETURN_IF_ERROR(
        CheckRowStride("token_stride", args.token_stride, width, args.num_rows));
  }
  return CheckOutputArrays(args.arrays, args.num_rows, args.num_tokens);
}

void TreeBatchOnHost(const TreeBatchArgs& args) {
  BatchGatherOnHost(ChainRowsOf(args));
  TreeTokensOnHost(TreeTokensOf(args));
}

absl::StatusOr<PagedBatch> BuildTreeBatch(const TreeBatchArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckTreeBatch(args));
  REPRISE_RETURN_IF_ERROR(CheckRowFaults(args.arrays.row_faults, args.num_rows));
  TreeBatchOnHost(args);
  REPRISE_RETURN_IF_ERROR(FirstFault(args.arrays.row_faults, args.num_rows,
                                     [&](int row) { return DescribeRow(args, row); }));
  return TreeBatch(args);
}

}  // namespace reprise
