// Cascade attention: cuts a batch at the prefix that its rows share, so that the prefix is read
// once for all rows. D3, D13.
//
//   CascadeBatchArgs args = {.batch = flat, .block_size = 16, ...};     // with common_prefix_len
//   CascadeBatchOnHost(args);    // or LaunchCascadeBatch(args, stream)
//   PagedAttention(layer, PrefixBatchOf(args), ..., out_0, &lse_0);     // all queries, one row
//   PagedAttention(layer, SuffixBatchOf(args), ..., out_1, &lse_1);     // each row's own keys
//   MergeStates(...)                                                    // sinks here, once
//
// Two rows of 40 and 34 keys whose first 32 are the same, one query each:
//
//   prefix   one row, 2 queries, 32 keys of table row 0, not causal
//   suffix   seq_lens 8 2, key_start 32 32; causal as before
//
// The merged result equals that of the flat batch. With common_prefix_len 0 the prefix row is inert
// and the suffix is the batch itself, so both calls may stay in a captured graph. The prefix counts
// as 0 if some row does not have all of it before its own queries (or tree), or if a row has
// queries but no keys. Layers that use positions (window, ALiBi, rotary, sparse patterns) need
// query_positions in the batch; pass no sinks to either call.
//
// attention/merge/cascade_rule.h decides whether to use it; attention/merge/common_prefix.h finds
// the prefix.
//
// Thread safety: pure functions of their arguments. Cost: linear in rows; no allocation.

#ifndef ATTENTION_MERGE_CASCADE_BATCH_H_
#define ATTENTION_MERGE_CASCADE_BATCH_H_

#include "absl/status/status.h"
#include "attention/merge/cascade_batch_args.h"
#include "attention/paged_batch.h"

namespace reprise {

// The two batches over the arrays, on the host or on the device.
PagedBatch PrefixBatchOf(const CascadeBatchArgs& args);
PagedBatch SuffixBatchOf(const CascadeBatchArgs& args);

// Errors: InvalidArgument for block_size < 1, a batch without common_prefix_len, or with ranks.
absl::Status CheckCascadeBatch(const CascadeBatchArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckCascadeBatch(args) is OK.
void CascadeBatchOnHost(const CascadeBatchArgs& args);

}  // namespace reprise

#endif  // ATTENTION_MERGE_CASCADE_BATCH_H_
