#include "reprise/attention/validate.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/attention/checks.h"
#include "reprise/base/check.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

bool IsFp8Type(at::ScalarType type) {
  return type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2;
}

absl::Status CheckOutDType(const at::Tensor& q, const at::Tensor& out) {
  if (IsFp8Type(q.scalar_type())) {
    return CheckDType("out", out,
                      {at::kHalf, at::kBFloat16, at::kFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2});
  }
  return CheckDType("out", out,
                    {q.scalar_type(), at::kFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2});
}

bool IsOne(const Scale& scale) { return scale.data == nullptr && scale.value == 1.0f; }

// Checks the scales of a quantised out.
absl::Status CheckOutputScales(ShapeChecker& dims, const AttentionParams& layer,
                               const at::Tensor& out, const AttentionExtras& extras) {
  const Scale& scale = extras.out_scale;
  if (!scale.data) REPRISE_RETURN_IF_ERROR(CheckPositive("out_scale", scale.value));
  const bool has_blocks = extras.out_block_scales != nullptr;
  if ((has_blocks || !IsOne(scale)) && !IsFp8Type(out.scalar_type())) {
    return absl::InvalidArgumentError(
        absl::StrCat("out must have an fp8 dtype if it is scaled: expected float8_e4m3fn or "
                     "float8_e5m2, got ",
                     std::string(out.dtype().name())));
  }
  if (!has_blocks) return absl::OkStatus();
  if (!IsOne(scale)) {
    return absl::InvalidArgumentError("out_scale must not be given together with out_block_scales");
  }
  const at::Tensor& scales = *extras.out_block_scales;
  REPRISE_RETURN_IF_ERROR(dims.Check(
      "out_block_scales", scales, {AtLeast(out.size(0)), "num_q_heads", AtLeast(1)}, at::kFloat));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out_block_scales", scales));
  REPRISE_RETURN_IF_ERROR(CheckDevice("out_block_scales", scales, out.device()));
  if (layer.head_dim_v % (4 * scales.size(2)) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("out_block_scales: expected blocks of a multiple of 4 columns of head_dim_v ",
                   layer.head_dim_v, ", got ", scales.size(2), " blocks"));
}

absl::Status CheckNewKeys(ShapeChecker& dims, const at::Tensor& q, const AttentionExtras& extras) {
  if (extras.new_k == nullptr && extras.new_v == nullptr) return absl::OkStatus();
  if (extras.new_k == nullptr || extras.new_v == nullptr) {
    return absl::InvalidArgumentError(
        "new_k and new_v must be given together: expected both or none, got one");
  }
  const at::Tensor& k = *extras.new_k;
  const at::Tensor& v = *extras.new_v;
  REPRISE_RETURN_IF_ERROR(
      dims.Check("new_k", k, {AtLeast("num_tokens"), "num_kv_heads", "head_dim_qk"}));
  REPRISE_RETURN_IF_ERROR(dims.Check(
      "new_v", v, {AtLeast("num_tokens"), "num_kv_heads", "head_dim_v"}, k.scalar_type()));
  if (IsFp8Type(q.scalar_type())) {
    REPRISE_RETURN_IF_ERROR(CheckDType("new_k", k, {at::kHalf, at::kBFloat16}));
  } else {
    REPRISE_RETURN_IF_ERROR(CheckDType("new_k", k, {q.scalar_type()}));
  }
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("new_k", k));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("new_v", v));
  REPRISE_RETURN_IF_ERROR(CheckDevice("new_k", k, q.device()));
  return CheckDevice("new_v", v, q.device());
}

// Checks q, out and lse for both paged and ragged attention.
absl::Status CheckQueriesAndOutputs(ShapeChecker& dims, const AttentionParams& layer,
                                    int num_tokens, const at::Tensor& q,
                                    const AttentionOutput& output) {
  const at::Tensor& out = output.out;
  const at::Tensor* const lse = output.lse;
  dims.Bind("num_tokens", num_tokens);
  dims.Bind("num_q_heads", layer.num_q_heads);
  dims.Bind("num_kv_heads", layer.num_kv_heads);
  dims.Bind("head_dim_qk", layer.head_dim_qk);
  dims.Bind("head_dim_v", layer.head_dim_v);
  REPRISE_RETURN_IF_ERROR(
      dims.Check("q", q, {AtLeast("num_tokens"), "num_q_heads", "head_dim_qk"}));
  REPRISE_RETURN_IF_ERROR(CheckDType(
      "q", q, {at::kFloat, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2}));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("q", q));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("out", out, {AtLeast("num_tokens"), "num_q_heads", "head_dim_v"}));
  REPRISE_RETURN_IF_ERROR(CheckOutDType(q, out));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out", out));
  REPRISE_RETURN_IF_ERROR(CheckDevice("out", out, q.device()));
  if (!lse) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(
      dims.Check("lse", *lse, {AtLeast("num_tokens"), "num_q_heads"}, at::kFloat));
  return CheckDevice("lse", *lse, q.device());
}

absl::Status CheckKeys(ShapeChecker& dims, const char* name, const at::Tensor& keys,
                       const char* head_dim, const at::Tensor& q) {
  REPRISE_RETURN_IF_ERROR(dims.Check(name, keys, {AtLeast("num_keys"), "num_kv_heads", head_dim}));
  REPRISE_RETURN_IF_ERROR(
      CheckDType(name, keys, {q.scalar_type(), at::kFloat8_e4m3fn, at::kFloat8_e5m2}));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(name, keys));
  return CheckDevice(name, keys, q.device());
}

}  // namespace

absl::Status ValidatePagedAttention(const AttentionParams& layer, const PagedBatch& batch,
                                    const at::Tensor& q, const KvLayer& kv,
                                    const AttentionOutput& output, const AttentionExtras& extras) {
  REPRISE_RETURN_IF_ERROR(CheckAttentionParams(layer));
  REPRISE_RETURN_IF_ERROR(CheckBatchFields(layer, batch));
  REPRISE_RETURN_IF_ERROR(CheckKvLayer(layer, kv));
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(CheckQueriesAndOutputs(dims, layer, batch.num_tokens, q, output));
  REPRISE_RETURN_IF_ERROR(CheckOutputScales(dims, layer, output.out, extras));
  if (kv.rope_dim > 0 && (extras.new_k || extras.new_v)) {
    return absl::InvalidArgumentError(
        "new_k and new_v: expected none with keys that have a rope part (kv.rope_dim), got them");
  }
  return CheckNewKeys(dims, q, extras);
}

absl::Status ValidateRaggedAttention(const AttentionParams& layer, const RaggedBatch& batch,
                                     const at::Tensor& q, const ContiguousKeys& keys,
                                     const AttentionOutput& output, const AttentionExtras& extras) {
  REPRISE_RETURN_IF_ERROR(CheckAttentionParams(layer));
  REPRISE_RETURN_IF_ERROR(CheckBatchFields(batch));
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(CheckQueriesAndOutputs(dims, layer, batch.num_tokens, q, output));
  REPRISE_RETURN_IF_ERROR(CheckOutputScales(dims, layer, output.out, extras));
  if (extras.new_k || extras.new_v) {
    return absl::InvalidArgumentError(
        "new_k and new_v must not be given for ragged attention, which takes k and v");
  }
  dims.Bind("num_keys", batch.num_keys);
  REPRISE_RETURN_IF_ERROR(CheckKeys(dims, "k", keys.k, "head_dim_qk", q));
  REPRISE_RETURN_IF_ERROR(CheckKeys(dims, "v", keys.v, "head_dim_v", q));
  return CheckDType("v", keys.v, {keys.k.scalar_type()});
}

}  // namespace reprise
