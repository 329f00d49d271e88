#include "attention/validate.h"

#include "attention/params_check.h"
#include "base/shape_check.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

// q, out and lse, which paged and ragged attention have in common.
absl::Status CheckQueriesAndOutputs(ShapeChecker& dims, const AttentionParams& layer,
                                    int num_tokens, const at::Tensor& q, const at::Tensor& out,
                                    const at::Tensor* lse) {
  dims.Bind("num_tokens", num_tokens);
  dims.Bind("num_q_heads", layer.num_q_heads);
  dims.Bind("num_kv_heads", layer.num_kv_heads);
  dims.Bind("head_dim_qk", layer.head_dim_qk);
  dims.Bind("head_dim_v", layer.head_dim_v);
  REPRISE_RETURN_IF_ERROR(
      dims.Check("q", q, {AtLeast("num_tokens"), "num_q_heads", "head_dim_qk"}));
  REPRISE_RETURN_IF_ERROR(CheckDType("q", q, {at::kFloat, at::kHalf, at::kBFloat16}));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("q", q));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("out", out, {AtLeast("num_tokens"), "num_q_heads", "head_dim_v"}));
  REPRISE_RETURN_IF_ERROR(CheckDType("out", out, {q.scalar_type(), at::kFloat}));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out", out));
  REPRISE_RETURN_IF_ERROR(CheckDevice("out", out, q.device()));
  if (!lse) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(
      dims.Check("lse", *lse, {AtLeast("num_tokens"), "num_q_heads"}, at::kFloat));
  return CheckDevice("lse", *lse, q.device());
}

absl::Status CheckKeys(ShapeChecker& dims, const char* name, const at::Tensor& keys,
                       const char* head_dim, const at::Tensor& q) {
  REPRISE_RETURN_IF_ERROR(
      dims.Check(name, keys, {AtLeast("num_keys"), "num_kv_heads", head_dim}, q.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(name, keys));
  return CheckDevice(name, keys, q.device());
}

}  // namespace

absl::Status ValidatePagedAttention(const AttentionParams& layer, const PagedBatch& batch,
                                    const at::Tensor& q, const KvLayer& kv, const at::Tensor& out,
                                    const at::Tensor* lse) {
  REPRISE_RETURN_IF_ERROR(CheckAttentionParams(layer));
  REPRISE_RETURN_IF_ERROR(CheckBatchFields(layer, batch));
  REPRISE_RETURN_IF_ERROR(CheckKvLayer(layer, kv));
  ShapeChecker dims;
  return CheckQueriesAndOutputs(dims, layer, batch.num_tokens, q, out, lse);
}

absl::Status ValidateRaggedAttention(const AttentionParams& layer, const RaggedBatch& batch,
                                     const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const at::Tensor& out, const at::Tensor* lse) {
  REPRISE_RETURN_IF_ERROR(CheckAttentionParams(layer));
  REPRISE_RETURN_IF_ERROR(CheckBatchFields(batch));
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(CheckQueriesAndOutputs(dims, layer, batch.num_tokens, q, out, lse));
  dims.Bind("num_keys", batch.num_keys);
  REPRISE_RETURN_IF_ERROR(CheckKeys(dims, "k", k, "head_dim_qk", q));
  return CheckKeys(dims, "v", v, "head_dim_v", q);
}

}  // namespace reprise
