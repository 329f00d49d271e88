// Writing new keys and values into the cache, by slot.
//
//   // k, v [num_tokens, num_kv_heads, head_dim], slices of a fused projection or rotated copies
//   REPRISE_RETURN_IF_ERROR(WriteKv(cache.layer(3), k, v, slot_mapping));
//
// For each token t < num_tokens = slot_mapping.size(0) whose slot s = slot_mapping[t] is not -1,
// and each head and dim:
//
//   k of the cache at (s / block_size, s % block_size, head, dim) = cast(k[t, head, dim] / k_scale)
//
// and v alike. Sources are converted through float32 (float64 into a float64 cache stays what it
// is) and rounded to nearest, ties to even. fp8 saturates: what is beyond the largest finite value
// becomes it; NaN stays NaN. Without conversion and scale the bits are copied.
//
//   slot_mapping  [num_tokens] int64, contiguous. Which of two equal slots wins is undefined.
//                 [rows, columns] is the same as its num_tokens = rows * columns slots, row by row
//   k             [>= num_tokens, num_kv_heads, head_dim_qk], any strides
//   v             [>= num_tokens, num_kv_heads, head_dim_v], any strides, k's dtype. Undefined for
//                 a latent cache, whose v is a part of k
//   dtypes        k, v: float32, float16, bfloat16, on the CPU float64 too; caches: those and fp8
//   scales        of kv: host floats, or floats on k's device by head (cache/kv_scale.h makes them
//                 of tensors); row_stride must be 0, for a token has no table row here
//
// All are on k's device, and so must the cache be: its pointers are not checked.
//
// On the CPU: done when it returns; several threads where it is worth it. A slot outside the cache
// (other than -1) is InvalidArgument, and nothing has been written.
//
// On CUDA: one launch on the current stream, no synchronisation, allocation or host read of device
// data, so it may be captured; a graph sees new contents of the same tensors. Slots outside the
// cache are not written: the host cannot know them. No launch if num_tokens is 0.
//
// Errors: InvalidArgument naming the argument, what was expected and what was got; Unimplemented
// for a dtype or device not listed, naming those that are; Internal if a launch fails.
//
// Thread safety: calls that write different slots may run at once.

#ifndef CACHE_WRITE_KV_H_
#define CACHE_WRITE_KV_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "cache/kv_layer.h"

namespace reprise {

absl::Status WriteKv(const KvLayer& kv, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& slot_mapping);

// Into a latent cache from its two parts (MLA), without joining them first: dims [0, head_dim_v) of
// each slot from `latent` [>= num_tokens, head_dim_v], the rest from `rope` [>= num_tokens,
// head_dim_qk - head_dim_v], both divided by k_scale. Otherwise as WriteKv().
// Errors: InvalidArgument too if kv is not latent, or has nothing but the latent part.
absl::Status WriteLatentKv(const KvLayer& kv, const at::Tensor& latent, const at::Tensor& rope,
                           const at::Tensor& slot_mapping);

}  // namespace reprise

#endif  // CACHE_WRITE_KV_H_
