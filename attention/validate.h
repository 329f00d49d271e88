// Checks the arguments of PagedAttention() and RaggedAttention(), on any device.
//
// Errors are InvalidArgument and name the argument, the expected value and the actual one. Reads no
// memory behind a pointer or tensor; attention/checks.h checks the arrays of batches on the host.
// Thread safety: pure functions. Cost: does not allocate unless a check fails.

#ifndef REPRISE_ATTENTION_VALIDATE_H_
#define REPRISE_ATTENTION_VALIDATE_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "reprise/attention/attention_extras.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

absl::Status ValidatePagedAttention(const AttentionParams& layer, const PagedBatch& batch,
                                    const at::Tensor& q, const KvLayer& kv,
                                    const AttentionOutput& output,
                                    const AttentionExtras& extras = {});

absl::Status ValidateRaggedAttention(const AttentionParams& layer, const RaggedBatch& batch,
                                     const at::Tensor& q, const ContiguousKeys& keys,
                                     const AttentionOutput& output,
                                     const AttentionExtras& extras = {});

}  // namespace reprise

#endif  // REPRISE_ATTENTION_VALIDATE_H_
