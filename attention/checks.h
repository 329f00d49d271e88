// Checks the arguments of attention without LibTorch: the parameters of a layer, the host fields of
// a batch and of a cache, and, before the CPU path reads them, the arrays of a batch in host
// memory. attention/validate.h checks tensors.
//
// Errors are InvalidArgument and name the field or element, the expected value and the actual one:
// "seq_lens[3]: expected 0 to 128 (max_seq_len), got 4711". Thread safety: pure functions. Cost:
// does not allocate unless a check fails.

#ifndef REPRISE_ATTENTION_CHECKS_H_
#define REPRISE_ATTENTION_CHECKS_H_

#include "absl/status/status.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Checks that num_kv_heads divides num_q_heads, and that dims, scale, window, softcap, slopes'
// stride, rotary parameters and sparse pattern are in range.
absl::Status CheckAttentionParams(const AttentionParams& layer);

// Checks that capacities are not negative, that required arrays are present, and that tails, masks,
// ranks and positions are compatible.
absl::Status CheckBatchFields(const AttentionParams& layer, const PagedBatch& batch);
absl::Status CheckBatchFields(const RaggedBatch& batch);

// Checks that the cache has the layer's heads and dims, and a supported dtype, that its memory is
// present, and that its rope part and the layer's sparse pattern fit it.
absl::Status CheckKvLayer(const AttentionParams& layer, const KvLayer& kv);

// Checks that prefix sums do not decrease, lengths fit the capacities, table rows are within the
// tables, tails are within rows, custom masks are within their array, and every block that may be
// read is within the cache. The other arrays may hold anything for rows without keys, as may table
// entries that are never read. Cost: O(rows + tokens + blocks).
// REQUIRES: the fields of the batch are valid.
absl::Status CheckBatchArrays(const AttentionParams& layer, const PagedBatch& batch,
                              const KvLayer& kv);
absl::Status CheckBatchArrays(const RaggedBatch& batch);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CHECKS_H_
