#include "runner/step.h"

#include <ATen/ops/empty.h>

#include "absl/strings/str_cat.h"
#include "attention/attention.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
#include "cache/write_kv.h"

namespace reprise {

absl::StatusOr<at::Tensor> Step::Attend(int layer, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v) const {
  REPRISE_RETURN_IF_ERROR(CheckLayer(layer));
  REPRISE_RETURN_IF_ERROR(WriteKv(parts_.kv[layer], k, v, parts_.slot_mapping));
  return Attend(layer, q);
}

absl::StatusOr<at::Tensor> Step::Attend(int layer, const at::Tensor& q) const {
  REPRISE_RETURN_IF_ERROR(CheckLayer(layer));
  const AttentionParams& params = parts_.layers[layer].params;
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    at::Tensor out = at::empty({num_tokens(), params.num_q_heads, params.head_dim_v}, q.options());
    REPRISE_RETURN_IF_ERROR(PagedAttention(params, parts_.batch,
                                           parts_.work_maps[parts_.layer_class[layer]], q,
                                           parts_.kv[layer], out, /*lse=*/nullptr));
    return out;
  });
}

absl::Status Step::CheckLayer(int layer) const {
  const int num_layers = static_cast<int>(parts_.layers.size());
  if (layer >= 0 && layer < num_layers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("layer is not in the model's spec: expected 0 to ",
                                                 num_layers - 1, ", got ", layer));
}

}  // namespace reprise
