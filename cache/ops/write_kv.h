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
// and the same for v. Sources are converted through float32 (float64 stays float64 in a float64
// cache) and rounded to nearest, ties to even. fp8 saturates to the largest finite value; NaN stays
// NaN. Without conversion and scale the bits are copied. Keys and values that are fp8 already are
// copied too: the scales do not apply to them.
//
//   slot_mapping  [num_tokens] int64, contiguous. Of two equal slots either may win.
//                 [rows, columns] is the same as its num_tokens = rows * columns slots, row by row
//   k             [>= num_tokens, num_kv_heads, head_dim_qk], any strides
//   v             [>= num_tokens, num_kv_heads, head_dim_v], any strides, k's dtype. Undefined for
//                 a latent cache, whose v is a part of k
//   dtypes        k, v: float32, float16, bfloat16, on the CPU float64 too, or the cache's fp8
//                 type; caches: those and fp8
//   scales        of kv: host floats, or floats on k's device by head (cache/ops/kv_scale.h makes
//                 them from tensors); row_stride must be 0, because a token has no table row here
//
// All are on k's device, and so must the cache be: its pointers are not checked.
//
// On the CPU: done when it returns; uses several threads from about 256 KB on. A slot outside the
// cache (other than -1) is InvalidArgument, and nothing has been written.
//
// On CUDA: one launch on the current stream, no synchronisation, allocation or host read of device
// data, so it may be captured; a graph sees new contents of the same tensors. Tokens with slots
// outside the cache are not written; the host cannot check them. No launch if num_tokens is 0.
//
// Errors: InvalidArgument naming the argument, what was expected and what was got; Unimplemented
// for a dtype or device not listed, naming those that are; Internal if a launch fails.
//
// Thread safety: calls that write different slots may run at once.

#ifndef REPRISE_CACHE_OPS_WRITE_KV_H_
#define REPRISE_CACHE_OPS_WRITE_KV_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

absl::Status WriteKv(const KvLayer& kv, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& slot_mapping);

// Writes into a latent cache from its two parts (MLA), without joining them first: dims
// [0, head_dim_v) of each slot from `latent` [>= num_tokens, head_dim_v], the rest from `rope`
// [>= num_tokens, head_dim_qk - head_dim_v], both divided by k_scale. Otherwise as WriteKv().
// Where the rope part is a tensor of its own (KvLayer::rope), `rope` [>= num_tokens, rope_dim] is
// divided by rope_scale, latent and rope may differ in dtype, and two dtypes are two launches.
// WriteKv() refuses such layers.
// Errors: InvalidArgument too if kv is not latent, or consists of the latent part only.
absl::Status WriteLatentKv(const KvLayer& kv, const at::Tensor& latent, const at::Tensor& rope,
                           const at::Tensor& slot_mapping);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_WRITE_KV_H_
