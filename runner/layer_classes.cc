#include "runner/layer_classes.h"

#include <tuple>

#include "absl/algorithm/container.h"

namespace reprise {
namespace {

auto ClassKey(const LayerSpec& layer) {
  const AttentionParams& params = layer.params;
  return std::tuple(params.num_q_heads, params.num_kv_heads, params.head_dim_qk, params.head_dim_v,
                    params.window_left, params.window_right);
}

}  // namespace

LayerClasses CollectLayerClasses(absl::Span<const LayerSpec> layers) {
  LayerClasses classes;
  classes.class_of_layer.reserve(layers.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const auto same = absl::c_find_if(classes.representatives, [&](int representative) {
      return ClassKey(layers[representative]) == ClassKey(layers[layer]);
    });
    classes.class_of_layer.push_back(static_cast<int>(same - classes.representatives.begin()));
    if (same == classes.representatives.end()) {
      classes.representatives.push_back(static_cast<int>(layer));
    }
  }
  return classes;
}

}  // namespace reprise
