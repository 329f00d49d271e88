// Checks the arrays of a batch in host memory against the contract, before the CPU path reads them.
//
// Errors are InvalidArgument and name the array, the element, what was expected and what was got:
// "seq_lens[3]: expected 0 to 128 (max_seq_len), got 4711". Rows without keys, and table entries
// that are never read, may hold anything.
//
// REQUIRES: the batch's fields are valid (attention/params_check.h). Thread safety: const data.
// Cost: O(tokens + blocks), no allocation unless a check fails.

#ifndef REPRISE_ATTENTION_BATCH_CHECK_H_
#define REPRISE_ATTENTION_BATCH_CHECK_H_

#include "absl/status/status.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Checks that prefix sums do not decrease and lengths fit the capacities, table rows are within the
// tables, tails are within rows, and every block from which a key may be read is within the cache.
absl::Status CheckBatchArrays(const AttentionParams& layer, const PagedBatch& batch,
                              const KvLayer& kv);

absl::Status CheckBatchArrays(const RaggedBatch& batch);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_BATCH_CHECK_H_
