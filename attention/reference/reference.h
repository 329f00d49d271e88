// Attention by its definition: the plain computation that every kernel is tested against.
//
//   ReferenceResult<double> expected = ReferencePagedAttention<double>(layer, batch, q, kv);
//   // expected.out[(t * num_q_heads + h) * head_dim_v + d], expected.lse[t * num_q_heads + h]
//
// Covers every field of PagedBatch, RaggedBatch, AttentionParams and KvLayer, for any dtype and
// layout. Reads an element only if a query sees it. All sums, products and functions are computed
// in T: float64 is the exact result; float32 measures the error of that precision on the same
// inputs, from which tests derive their tolerance. Results are not rounded to the dtype of q.
// `product_dtype` rounds the operands of products to that dtype, as kernels on tensor cores must: q
// and k after a rotary embedding, q after the ratio of KvLayer::rope_scale, and weights before they
// multiply V (but not in their sum). The result shows the error of that arithmetic.
//
// Host memory only. Thread safety: const data. Cost: a few ns per query, head, key and dim.

#ifndef REPRISE_ATTENTION_REFERENCE_REFERENCE_H_
#define REPRISE_ATTENTION_REFERENCE_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/token_view.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"

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
                                            DType product_dtype = DType::kFloat64,
                                            const KeyScales& scales = {});

}  // namespace reprise

#endif  // REPRISE_ATTENTION_REFERENCE_REFERENCE_H_
