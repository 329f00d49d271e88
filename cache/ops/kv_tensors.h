// Checks of the key and value tensors of WriteKv() and ReadKv(), and their conversion to plain
// values.

#ifndef REPRISE_CACHE_OPS_KV_TENSORS_H_
#define REPRISE_CACHE_OPS_KV_TENSORS_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/base/shape_check.h"
#include "reprise/cache/ops/kv_tokens.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Checks that k and v are [>= num_tokens, num_kv_heads, head_dim], with one dtype and on one
// device; v is undefined for a latent cache. REQUIRES: "num_tokens" is bound in `dims`. Errors:
// InvalidArgument naming the argument.
absl::Status CheckKvTensors(const KvLayer& kv, const at::Tensor& k, const at::Tensor& v,
                            ShapeChecker& dims);

// Returns the DType of k. `operation`, for example "KV write", appears in error messages. Errors:
// Unimplemented for a device that this build does not support, for a dtype of k other than float32,
// float16, bfloat16 and, on the CPU, float64, and for a float64 cache on CUDA.
absl::StatusOr<DType> SupportedDType(const char* operation, const KvLayer& kv, const at::Tensor& k);

// Return the address and strides of `tensor`, or default values if it is undefined.
KvTokens TokensOf(const at::Tensor& tensor);
ConstKvTokens ConstTokensOf(const at::Tensor& tensor);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_KV_TENSORS_H_
