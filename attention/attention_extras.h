// What a call of attention may carry beyond the layer, the batch, q and the cache.
//
//   // fp8 out with one scale, and this step's keys from the projections instead of the cache:
//   AttentionExtras extras = {.new_k = &k, .new_v = &v, .out_scale = {.value = 0.02f}};
//   REPRISE_RETURN_IF_ERROR(PagedAttention(layer, batch, work, q, kv, out, nullptr, extras));
//
// A value; the tensors must live as long as the call, their memory as long as a graph that has
// captured it.

#ifndef ATTENTION_ATTENTION_EXTRAS_H_
#define ATTENTION_ATTENTION_EXTRAS_H_

#include <ATen/core/Tensor.h>

#include <optional>

#include "base/dtype.h"
#include "cache/kv_layer.h"

namespace reprise {

struct AttentionExtras {
  // New keys beside a (quantised) cache: the last query_len keys of each row are not read from the
  // cache but are these: key seq_len - query_len + i is that of the row's i-th token. They are as
  // they are: the cache's scales are not theirs. new_k [>= num_tokens, num_kv_heads, head_dim_qk],
  // new_v [..., head_dim_v], of q's dtype (of the type of the products, if q is fp8: bfloat16, or
  // float16 with a cache of it), last stride 1. PagedAttention only.
  const at::Tensor* new_k = nullptr;
  const at::Tensor* new_v = nullptr;

  // Quantised output: out is the result divided by the scale, rounded, in an fp8 tensor at most its
  // largest value. A host float, or one float on the device of q.
  Scale out_scale = {};
  // Or by a scale of its own for each `block` columns of a head, which makes their largest absolute
  // value the largest of out's type, and is written here: [>= num_tokens, num_q_heads, head_dim_v /
  // block] float32, last stride 1; head_dim_v and block are multiples of 4. Blocks of zeros get the
  // scale of 1e-10. Excludes out_scale.
  at::Tensor* out_block_scales = nullptr;

  // CUDA only: the type in which to multiply, in place of q's, for work maps that were planned for
  // it (WorkMapOptions::products). float32: CUDA cores instead of tensor cores. Tensor cores are
  // the quicker at every shape measured, so they are what a call gets without it.
  std::optional<DType> products = {};

  // CUDA only: 1 keeps to the general kernels, where a tuned one would serve.
  int max_tier = 2;
};

}  // namespace reprise

#endif  // ATTENTION_ATTENTION_EXTRAS_H_
