#include "runner/step.h"

#include <ATen/ops/empty.h>

#include "absl/strings/str_cat.h"
#include "attention/attention.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
#include "cache/write_kv.h"
#include "glog/logging.h"

namespace reprise {

absl::StatusOr<at::Tensor> Step::Attend(int layer, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v) const {
  REPRISE_RETURN_IF_ERROR(CheckIsWritten(layer));
  if (parts_.layers[layer].v_in_k) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layer, " keeps V within K: expected one latent for both, got k and v"));
  }
  return WriteAndAttend(layer, q, k, v);
}

absl::StatusOr<at::Tensor> Step::Attend(int layer, const at::Tensor& q,
                                        const at::Tensor& latent) const {
  REPRISE_RETURN_IF_ERROR(CheckIsWritten(layer));
  if (!parts_.layers[layer].v_in_k) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " keeps K and V apart: expected k and v, got one latent"));
  }
  return WriteAndAttend(layer, q, latent, at::Tensor());
}

absl::StatusOr<at::Tensor> Step::WriteAndAttend(int layer, const at::Tensor& q, const at::Tensor& k,
                                                const at::Tensor& v) const {
  REPRISE_RETURN_IF_ERROR(WriteKv(parts_.kv[layer], k, v, slot_mapping(layer)));
  return Attend(layer, q);
}

absl::StatusOr<at::Tensor> Step::Attend(int layer, const at::Tensor& q) const {
  REPRISE_RETURN_IF_ERROR(CheckHasCache(layer));
  const AttentionParams& params = parts_.layers[layer].params;
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    at::Tensor out = at::empty({num_tokens(), params.num_q_heads, params.head_dim_v}, q.options());
    REPRISE_RETURN_IF_ERROR(PagedAttention(params, batch(layer), work_map(layer), q,
                                           parts_.kv[layer], out, /*lse=*/nullptr));
    return out;
  });
}

const at::Tensor& Step::slot_mapping(int layer) const {
  const std::optional<int> group = parts_.classes->group_of_layer.at(layer);
  CHECK(group.has_value()) << "layer " << layer << " has no cache";
  return parts_.slot_mappings[*group];
}

const PagedBatch& Step::batch(int layer) const {
  return parts_.batches[parts_.classes->class_of_layer.at(layer)];
}

const WorkMap& Step::work_map(int layer) const {
  return parts_.work_maps[parts_.classes->class_of_layer.at(layer)];
}

absl::Status Step::CheckHasCache(int layer) const {
  const int num_layers = static_cast<int>(parts_.layers.size());
  if (layer < 0 || layer >= num_layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer is not in the model's spec: expected 0 to ", num_layers - 1, ", got ", layer));
  }
  if (parts_.classes->group_of_layer[layer]) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "layer ", layer, " is the encoder's: expected a decoder or encoder-decoder layer"));
}

absl::Status Step::CheckIsWritten(int layer) const {
  REPRISE_RETURN_IF_ERROR(CheckHasCache(layer));
  const LayerSpec& spec = parts_.layers[layer];
  if (spec.shares_kv_with) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer, " reads the keys of layer ",
                                                   *spec.shares_kv_with,
                                                   " and writes none: expected q alone"));
  }
  if (spec.kind == AttentionKind::kEncoderDecoder) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layer, " reads the encoder's keys and writes none: expected q alone"));
  }
  return absl::OkStatus();
}

}  // namespace reprise
