// Checks the arguments of PagedAttention() and RaggedAttention(), on any device.
//
// Errors are InvalidArgument and name the argument, what was expected and what was got. Reads no
// memory behind a pointer or tensor: arrays of batches on the host are checked by
// attention/batch_check.h. Thread safety: pure functions. Cost: no allocation unless a check fails.

#ifndef ATTENTION_VALIDATE_H_
#define ATTENTION_VALIDATE_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "attention/attention_extras.h"
#include "attention/attention_params.h"
#include "attention/paged_batch.h"
#include "attention/ragged_batch.h"
#include "cache/storage/kv_layer.h"

namespace reprise {

absl::Status ValidatePagedAttention(const AttentionParams& layer, const PagedBatch& batch,
                                    const at::Tensor& q, const KvLayer& kv, const at::Tensor& out,
                                    const at::Tensor* lse, const AttentionExtras& extras = {});

absl::Status ValidateRaggedAttention(const AttentionParams& layer, const RaggedBatch& batch,
                                     const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const at::Tensor& out, const at::Tensor* lse,
                                     const AttentionExtras& extras = {});

}  // namespace reprise

#endif  // ATTENTION_VALIDATE_H_
