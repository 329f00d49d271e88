// Checks the parameters of a layer, by themselves and against a batch's host fields.
//
// Errors are InvalidArgument and name the field, what was expected and what was got. Reads no
// array. Thread safety: pure functions. Cost: no allocation unless a check fails.

#ifndef REPRISE_ATTENTION_PARAMS_CHECK_H_
#define REPRISE_ATTENTION_PARAMS_CHECK_H_

#include "absl/status/status.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Checks that num_kv_heads divides num_q_heads, and that dims, window, softcap, rotary and sparse
// pattern are in range.
absl::Status CheckAttentionParams(const AttentionParams& layer);

// Checks that capacities are not negative, required arrays are present, and tails, ranks and
// positions are compatible.
absl::Status CheckBatchFields(const AttentionParams& layer, const PagedBatch& batch);
absl::Status CheckBatchFields(const RaggedBatch& batch);

// Checks that the cache has the layer's heads and dims, and memory.
absl::Status CheckKvLayer(const AttentionParams& layer, const KvLayer& kv);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_PARAMS_CHECK_H_
