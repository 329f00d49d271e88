// Attention by its definition: the plain computation to which every kernel is held.
//
//   ReferenceResult<double> expected = ReferencePagedAttention<double>(layer, batch, q, kv);
//   // expected.out[(t * num_q_heads + h) * head_dim_v + d], expected.lse[t * num_q_heads + h]
//
// Covers every field of PagedBatch, RaggedBatch, AttentionParams and KvLayer, for any dtype and
// layout. Reads an element only if a query sees it. All sums, products and functions are taken in
// T: float64 is the truth, float32 says how far that precision is from it on the same inputs, from
// which tests derive their tolerance. Results are not rounded to the dtype of q. With
// `product_dtype`, what is multiplied is rounded to it, as kernels on tensor cores must: q and k
// that were turned by a rotary embedding, and weights before they multiply V (but not in their
// sum). That is what such maths is off the truth by.
//
// Host memory only. Thread safety: const data. Cost: a few ns per query, head, key and dim.

#ifndef ATTENTION_REFERENCE_H_
#define ATTENTION_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "attention/attention_params.h"
#include "attention/paged_batch.h"
#include "attention/ragged_batch.h"
#include "attention/token_view.h"
#include "base/dtype.h"
#include "cache/kv_layer.h"

namespace reprise {

template <typename T>
struct ReferenceResult {
  std::vector<T> out;  // [num_tokens, num_q_heads, head_dim_v]
  std::vector<T> lse;  // [num_tokens, num_q_heads]
};

// T is float or double.
template <typename T>
ReferenceResult<T> ReferencePagedAttention(const AttentionParams& layer, const PagedBatch& batch,
                                           const TokenView& q, const KvLayer& kv,
                                           DType product_dtype = DType::kFloat64,
                                           const NewKeys& new_keys = {});

template <typename T>
ReferenceResult<T> ReferenceRaggedAttention(const AttentionParams& layer, const RaggedBatch& batch,
                                            const TokenView& q, const TokenView& k,
                                            const TokenView& v,
                                            DType product_dtype = DType::kFloat64);

}  // namespace reprise

#endif  // ATTENTION_REFERENCE_H_
