// Tensors and optional arguments of an attention call, other than q and the cache.
//
//   // fp8 out with one scale, and this step's keys from the projections instead of the cache:
//   AttentionExtras extras = {.new_k = &k, .new_v = &v, .out_scale = {.value = 0.02f}};
//   REPRISE_RETURN_IF_ERROR(PagedAttention(layer, batch, work, q, kv, {out, &lse}, extras));
//
// Values. The tensors must outlive the call; their memory must outlive any graph that captures it.

#ifndef REPRISE_ATTENTION_ATTENTION_EXTRAS_H_
#define REPRISE_ATTENTION_ATTENTION_EXTRAS_H_

#include <ATen/core/Tensor.h>

#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// The tensors that a call writes. attention/attention.h has their shapes and dtypes.
struct AttentionOutput {
  at::Tensor& out;
  at::Tensor* lse = nullptr;  // null: not written
};

// The keys and values of RaggedAttention(): k [num_keys, num_kv_heads, head_dim_qk], v [num_keys,
// num_kv_heads, head_dim_v], both of q's dtype or of one fp8 type; last stride 1.
struct ContiguousKeys {
  const at::Tensor& k;
  const at::Tensor& v;
  Scale k_scale = {};
  Scale v_scale = {};
};

struct AttentionExtras {
  // New keys in addition to a (quantised) cache: the last query_len keys of each row come from
  // these tensors instead of the cache. Key seq_len - query_len + i belongs to the row's i-th
  // token. The cache's scales do not apply to them. new_k [>= num_tokens, num_kv_heads,
  // head_dim_qk] and new_v [..., head_dim_v] have q's dtype and last stride 1. If q is fp8, they
  // have the MMA type instead: bfloat16, or float16 if the cache is float16. PagedAttention only.
  const at::Tensor* new_k = nullptr;
  const at::Tensor* new_v = nullptr;

  // Quantised output: out is the result divided by the scale and rounded. An fp8 tensor saturates
  // at the largest value. The scale is a host float, or one float on the device of q.
  Scale out_scale = {};
  // Alternatively, each `block` columns of a head get their own scale, which maps their largest
  // absolute value to the largest value of out's type. The scales of all tokens of out are
  // written to this tensor: [>= tokens of out, num_q_heads, head_dim_v / block] float32, last
  // stride 1. head_dim_v and block must be multiples of 4. Maxima below 1e-10 count as 1e-10.
  // Excludes out_scale.
  at::Tensor* out_block_scales = nullptr;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_ATTENTION_EXTRAS_H_
