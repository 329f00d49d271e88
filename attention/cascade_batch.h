// Cascade attention: a batch cut at the prefix that its rows share, so that the prefix is read once
// for all of them. D3, D13.
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
// The merged result is that of the flat batch. So it is with common_prefix_len 0, where the prefix
// row is inert and the suffix is the batch itself: both calls may stand in a graph for good. A
// prefix that some row does not have whole before its own queries (or tree), or a row with queries
// but without keys, counts as 0. Layers to which positions matter (window, ALiBi, rotary, sparse
// patterns) need query_positions in the batch; sinks are left out of both calls.
//
// Whether it pays: attention/cascade_rule.h. The prefix: attention/common_prefix.h.
//
// Thread safety: pure functions of their arguments. Cost: linear in rows; no allocation.

#ifndef ATTENTION_CASCADE_BATCH_H_
#define ATTENTION_CASCADE_BATCH_H_

#include "absl/status/status.h"
#include "attention/cascade_batch_args.h"
#include "attention/paged_batch.h"

namespace reprise {

// The two batches that the arrays make, on the host or on the device.
PagedBatch PrefixBatchOf(const CascadeBatchArgs& args);
PagedBatch SuffixBatchOf(const CascadeBatchArgs& args);

// Errors: InvalidArgument for block_size < 1, a batch without common_prefix_len, or with ranks.
absl::Status CheckCascadeBatch(const CascadeBatchArgs& args);

// What the device does, over host memory. REQUIRES: CheckCascadeBatch(args) is OK.
void CascadeBatchOnHost(const CascadeBatchArgs& args);

}  // namespace reprise

#endif  // ATTENTION_CASCADE_BATCH_H_
