#include "reprise/runner/encoder_step.h"

#include <ATen/ops/empty.h>

#include "absl/strings/str_cat.h"
#include "reprise/attention/attention.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/cache/ops/write_kv.h"

namespace reprise {

absl::StatusOr<at::Tensor> EncoderStep::Attend(int layer, const at::Tensor& q, const at::Tensor& k,
                                               const at::Tensor& v) const {
  REPRISE_RETURN_IF_ERROR(CheckKind(layer, AttentionKind::kEncoder, "encoder"));
  const AttentionParams& params = parts_.layers[layer].params;
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    at::Tensor out = at::empty({num_tokens(), params.num_q_heads, params.head_dim_v}, q.options());
    REPRISE_RETURN_IF_ERROR(RaggedAttention(params, parts_.batch,
                                            parts_.work[parts_.classes->class_of_layer[layer]], q,
                                            {k, v}, {out}));
    return out;
  });
}

absl::Status EncoderStep::WriteKeys(int layer, const at::Tensor& k, const at::Tensor& v) const {
  REPRISE_RETURN_IF_ERROR(CheckKind(layer, AttentionKind::kEncoderDecoder, "encoder-decoder"));
  const LayerSpec& spec = parts_.layers[layer];
  if (spec.shares_kv_with) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer, " reads the keys of layer ",
                                                   *spec.shares_kv_with, " and writes none"));
  }
  return WriteKv(parts_.kv[layer], k, v,
                 parts_.slot_mappings[*parts_.classes->group_of_layer[layer]]);
}

absl::Status EncoderStep::CheckKind(int layer, AttentionKind kind, const char* name) const {
  const int num_layers = static_cast<int>(parts_.layers.size());
  if (layer < 0 || layer >= num_layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer is not in the model's spec: expected 0 to ", num_layers - 1, ", got ", layer));
  }
  if (parts_.layers[layer].kind == kind) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("layer ", layer, " has the wrong kind: expected an ", name, " layer"));
}

}  // namespace reprise
