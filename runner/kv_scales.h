// The scales of a runner's quantised KV cache, in memory of the device at unchanged addresses.
//
//   enum        scales of a layer's K, and as many of its V
//   kPerLayer   [1]
//   kPerHead    [num_kv_heads]
//
// A latent (MLA) is K and, in its first columns, V: set the same number in k and v.
//
// They begin as the layer's spec says (LayerSpec::k_scale, v_scale). A caller may overwrite them
// between steps, on the runner's stream: captured graphs read them when they run. Keys that are in
// the cache already are then read with the new scales, so change them only while no sequence has
// keys, or together with what the cache holds.
//
// Thread safety: none; one owner. Copies share the memory.

#ifndef REPRISE_RUNNER_KV_SCALES_H_
#define REPRISE_RUNNER_KV_SCALES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/layer_spec.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

enum class KvScaleShape : int8_t { kPerLayer, kPerHead };

class KvScales {
 public:
  struct Layer {
    at::Tensor k;  // float32 of the shape above, contiguous
    at::Tensor v;
  };

  // Layers that share another's keys share its scales. Errors: InvalidArgument for a scale of a
  // spec that is not positive and finite; ResourceExhausted.
  static absl::StatusOr<KvScales> Allocate(absl::Span<const LayerSpec> layers, KvScaleShape shape,
                                           c10::Device device);

  const Layer& layer(int layer) const { return layers_[layer]; }
  Scale k_scale(int layer) const;
  Scale v_scale(int layer) const;

 private:
  std::vector<Layer> layers_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_KV_SCALES_H_
