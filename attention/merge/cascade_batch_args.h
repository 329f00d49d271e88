// Arguments for cutting a batch at a shared prefix, and the rules for one row; shared by the host
// and device forms (attention/merge/cascade_batch.h).

#ifndef ATTENTION_MERGE_CASCADE_BATCH_ARGS_H_
#define ATTENTION_MERGE_CASCADE_BATCH_ARGS_H_

#include <cstdint>

#include "attention/merge/common_prefix_args.h"
#include "attention/paged_batch.h"
#include "base/host_device.h"

namespace reprise {

struct CascadeBatchArgs {
  PagedBatch batch = {};  // common_prefix_len is present
  int block_size = 0;

  // The pass over the prefix: one row of all queries.
  int32_t* prefix_query_start_loc = nullptr;  // [2]
  int32_t* prefix_seq_lens = nullptr;         // [1]
  int32_t* prefix_table_row = nullptr;        // [1]
  int32_t* prefix_key_start = nullptr;        // [1]
  // The rest of each row.
  int32_t* suffix_seq_lens = nullptr;   // [num_rows]
  int32_t* suffix_key_start = nullptr;  // [num_rows]
};

// Whether the batch can be cut at `prefix` as far as this row goes: the row has no queries, or all
// its queries see the prefix.
REPRISE_HOST_DEVICE constexpr bool AllowsPrefix(const CascadeBatchArgs& args, int row,
                                                int64_t prefix) {
  const PagedBatch& batch = args.batch;
  if (batch.query_start_loc[row + 1] <= batch.query_start_loc[row]) return true;
  const PrefixRow keys = PrefixRowOf({.batch = batch, .block_size = args.block_size}, row);
  return keys.num_keys >= prefix;  // -1: queries without keys, which do not see the prefix
}

REPRISE_HOST_DEVICE constexpr bool IsLive(const CascadeBatchArgs& args, int row) {
  return args.batch.query_start_loc[row + 1] > args.batch.query_start_loc[row] &&
         args.batch.seq_lens[row] > 0;
}

// Writes the rest of a row after `prefix`; rows that are not live are inert.
REPRISE_HOST_DEVICE constexpr void WriteSuffix(const CascadeBatchArgs& args, int row,
                                               int32_t prefix) {
  const PagedBatch& batch = args.batch;
  const bool is_live = IsLive(args, row);
  args.suffix_seq_lens[row] = is_live ? batch.seq_lens[row] - prefix : 0;
  args.suffix_key_start[row] = is_live ? (batch.key_start ? batch.key_start[row] : 0) + prefix : 0;
}

// Writes the row over the prefix, read through the table row of the first live row; inert if
// `prefix` is 0.
REPRISE_HOST_DEVICE constexpr void WritePrefix(const CascadeBatchArgs& args, int first_live,
                                               int32_t prefix) {
  const PagedBatch& batch = args.batch;
  const int32_t num_tokens = batch.query_start_loc[batch.num_rows];
  args.prefix_query_start_loc[0] = 0;
  args.prefix_query_start_loc[1] = prefix > 0 ? num_tokens : 0;
  args.prefix_seq_lens[0] = prefix;
  args.prefix_table_row[0] =
      prefix > 0 ? (batch.table_row ? batch.table_row[first_live] : first_live) : 0;
  args.prefix_key_start[0] = prefix > 0 && batch.key_start ? batch.key_start[first_live] : 0;
}

}  // namespace reprise

#endif  // ATTENTION_MERGE_CASCADE_BATCH_ARGS_H_
