#include "runner/layer_classes.h"

#include <tuple>

#include "absl/algorithm/container.h"

namespace reprise {
namespace {

auto ClassKey(const AttentionParams& layer) {
  return std::tuple(layer.num_q_heads, layer.num_kv_heads, layer.head_dim_qk, layer.head_dim_v,
                    layer.window_left, layer.window_right);
}

}  // namespace

LayerClasses CollectLayerClasses(absl::Span<const AttentionParams> layers) {
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
