// Computes attention by its definition, in plain loops. All kernels are tested against these
// functions.
//
//   ReferenceResult<double> expected = ReferencePagedAttention<double>(layer, batch, q, kv);
//   // expected.out[(t * num_q_heads + h) * head_dim_v + d], expected.lse[t * num_q_heads + h]
//
// Supports every field of PagedBatch, RaggedBatch, AttentionParams and KvLayer, for any dtype and
// layout. Reads a key or value only if a query sees it. All sums, products and functions are
// computed in T. With float64 the result counts as exact. With float32 it gives the error of that
// precision on the same inputs, and tests derive their tolerance from that error. Results are not
// rounded to the dtype of q.
//
// The operands of MMAs are rounded to `product_dtype`, as in tensor-core kernels: q and k after
// rotary embedding, q after the multiplication by the ratio of KvLayer::rope_scale, and softmax
// weights before the multiplication with V (but not in the sum of weights). The result then has the
// error of that arithmetic.
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

// Returns out and lse of all tokens. T is float or double.
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
