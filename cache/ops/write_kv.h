// Writing new keys and values into the cache, by slot.
//
//   // k, v [num_tokens, num_kv_heads, head_dim], slices of a fused projection or rotated copies
//   REPRISE_RETURN_IF_ERROR(WriteKv(cache.layer(3), k, v, slot_mapping));
//
// For each token t < num_tokens = slot_mapping.size(0) with a slot s = slot_mapping[t] other than
// -1, and each head and dim:
//
//   k of the cache at (s / block_size, s % block_size, head, dim) = cast(k[t, head, dim] / k_scale)
//
// The same applies to v. Sources are converted through float32 (in a float64 cache, float64 stays
// float64) and rounded to nearest, ties to even. fp8 saturates to the largest finite value; NaN
// stays NaN. Without conversion and scale, the bits are copied. fp8 sources are also copied: the
// scales do not apply to them.
//
//   slot_mapping  [num_tokens] int64, contiguous. If two slots are equal, either token may win.
//                 [rows, columns] is equivalent to [rows * columns], row by row
//   k             [>= num_tokens, num_kv_heads, head_dim_qk], any strides
//   v             [>= num_tokens, num_kv_heads, head_dim_v], any strides, the dtype of k. Undefined
//                 for a latent cache, whose v is a part of k
//   dtypes        k, v: float32, float16, bfloat16, on the CPU also float64, or the cache's fp8
//                 type. Cache: the same dtypes and fp8
//   scales        the scales of kv: host floats, or floats on k's device per head (see
//                 cache/ops/kv_scale.h). row_stride must be 0, because tokens have no table row
//
// All tensors and the cache must be on the device of k. The device of the cache's pointers is not
// checked.
//
// On the CPU, the write has completed when the call returns. It uses several threads if it writes
// more than about 128 KB. A slot outside the cache (other than -1) is InvalidArgument, and nothing
// is written.
//
// On CUDA, the write is one launch on the current stream, without synchronisation, allocation or
// host reads of device data. It may be captured; a replay uses the current contents of the same
// tensors. Tokens with slots outside the cache are not written, because the host cannot check the
// slots. No launch if num_tokens is 0.
//
// Errors: InvalidArgument, naming the argument, the expected and the given value; Unimplemented for
// any other dtype or device, naming the supported ones; Internal if a launch fails.
//
// Thread safety: calls that write different slots may run concurrently.

#ifndef REPRISE_CACHE_OPS_WRITE_KV_H_
#define REPRISE_CACHE_OPS_WRITE_KV_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

absl::Status WriteKv(const KvLayer& kv, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& slot_mapping);

// Writes to a latent cache (MLA) from its two parts, without joining them first. Dims [0,
// head_dim_v) of each slot come from `latent` [>= num_tokens, head_dim_v], the other dims from
// `rope` [>= num_tokens, head_dim_qk - head_dim_v]. Both are divided by k_scale. Otherwise as
// WriteKv(). If the rope part is a separate tensor (KvLayer::rope), `rope` is [>= num_tokens,
// rope_dim] and is divided by rope_scale. The dtypes of the two parts may then differ; two dtypes
// need two launches. WriteKv() rejects such layers. Errors: also InvalidArgument if kv is not
// latent, or has only the latent part.
absl::Status WriteLatentKv(const KvLayer& kv, const at::Tensor& latent, const at::Tensor& rope,
                           const at::Tensor& slot_mapping);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_WRITE_KV_H_
