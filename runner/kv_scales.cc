#include "reprise/runner/kv_scales.h"

#include <ATen/ops/full.h>

#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

namespace reprise {
namespace {

absl::Status CheckScale(const char* name, size_t layer, std::optional<float> scale) {
  if (!scale || (std::isfinite(*scale) && *scale > 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " of layer ", layer, " must be positive and finite: got ", *scale));
}

Scale ScaleOf(const at::Tensor& scales) {
  return {.data = scales.const_data_ptr<float>(), .head_stride = scales.size(0) == 1 ? 0 : 1};
}

}  // namespace

absl::StatusOr<KvScales> KvScales::Allocate(absl::Span<const LayerSpec> layers, KvScaleShape shape,
                                            c10::Device device) {
  return CatchTorchOr([&]() -> absl::StatusOr<KvScales> {
    KvScales scales;
    for (size_t i = 0; i < layers.size(); ++i) {
      const LayerSpec& layer = layers[i];
      REPRISE_RETURN_IF_ERROR(CheckScale("k_scale", i, layer.k_scale));
      REPRISE_RETURN_IF_ERROR(CheckScale("v_scale", i, layer.v_scale));
      if (layer.shares_kv_with) {
        scales.layers_.push_back(scales.layers_[*layer.shares_kv_with]);
        continue;
      }
      const int64_t num_scales = shape == KvScaleShape::kPerLayer ? 1 : layer.params.num_kv_heads;
      const auto filled = [&](std::optional<float> value) {
        return at::full({num_scales}, value.value_or(1.0f),
                        at::TensorOptions(device).dtype(at::kFloat));
      };
      scales.layers_.push_back({.k = filled(layer.k_scale), .v = filled(layer.v_scale)});
    }
    return scales;
  });
}

Scale KvScales::k_scale(int layer) const { return ScaleOf(layers_[layer].k); }
Scale KvScales::v_scale(int layer) const { return ScaleOf(layers_[layer].v); }

}  // namespace reprise
