#include "attention/merge/cascade_batch.h"

#include "base/check.h"
#include "base/status_macros.h"

namespace reprise {

PagedBatch PrefixBatchOf(const CascadeBatchArgs& args) {
  PagedBatch batch = args.batch;
  batch.query_start_loc = args.prefix_query_start_loc;
  batch.seq_lens = args.prefix_seq_lens;
  batch.table_row = args.prefix_table_row;
  batch.key_start = args.prefix_key_start;
  batch.tail_len = nullptr;
  batch.tail_mask = nullptr;
  batch.common_prefix_len = nullptr;
  batch.causal = false;
  batch.num_rows = 1;
  batch.max_query_len = batch.num_tokens;
  return batch;
}

PagedBatch SuffixBatchOf(const CascadeBatchArgs& args) {
  PagedBatch batch = args.batch;
  batch.seq_lens = args.suffix_seq_lens;
  batch.key_start = args.suffix_key_start;
  batch.common_prefix_len = nullptr;
  return batch;
}

absl::Status CheckCascadeBatch(const CascadeBatchArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("block_size", args.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.batch.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("key_positions.world", args.batch.key_positions.world, 1, 1));
  if (args.batch.common_prefix_len != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError("common_prefix_len: expected an array, got none");
}

void CascadeBatchOnHost(const CascadeBatchArgs& args) {
  int32_t prefix = *args.batch.common_prefix_len;
  int first_live = -1;
  for (int row = args.batch.num_rows - 1; row >= 0; --row) {
    if (!AllowsPrefix(args, row, prefix)) prefix = 0;
    if (IsLive(args, row)) first_live = row;
  }
  if (prefix < 0 || first_live < 0) prefix = 0;
  for (int row = 0; row < args.batch.num_rows; ++row) WriteSuffix(args, row, prefix);
  WritePrefix(args, first_live, prefix);
}

}  // namespace reprise
