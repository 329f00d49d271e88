// Whether the parameters of a layer make sense, by themselves and with a batch's host fields.
//
// Errors are InvalidArgument and name the field, what was expected and what was got. Reads no
// array. Thread safety: pure functions. Cost: no allocation unless a check fails.

#ifndef ATTENTION_PARAMS_CHECK_H_
#define ATTENTION_PARAMS_CHECK_H_

#include "absl/status/status.h"
#include "attention/attention_params.h"
#include "attention/paged_batch.h"
#include "attention/ragged_batch.h"
#include "cache/kv_layer.h"

namespace reprise {

// Heads that divide; dims, window, softcap, rotary and sparse pattern within their ranges.
absl::Status CheckAttentionParams(const AttentionParams& layer);

// Capacities that are not negative; arrays that must be there; tails, ranks and positions that go
// together.
absl::Status CheckBatchFields(const AttentionParams& layer, const PagedBatch& batch);
absl::Status CheckBatchFields(const RaggedBatch& batch);

// A cache of the layer's heads and dims, with memory.
absl::Status CheckKvLayer(const AttentionParams& layer, const KvLayer& kv);

}  // namespace reprise

#endif  // ATTENTION_PARAMS_CHECK_H_
