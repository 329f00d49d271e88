// The scales of a runner's quantised KV cache, in device memory at constant addresses.
//
//   enum        scales of a layer's K; V has the same number
//   kPerLayer   [1]
//   kPerHead    [num_kv_heads]
//
// For MLA, V is the first columns of K: set the same values in k and v.
//
// The initial values come from the layer's spec (LayerSpec::k_scale, v_scale); 1 if unset. A caller
// may overwrite scales between steps, on the runner's stream: captured graphs read them at each
// replay.
// Cached keys are then also read with the new scales. Change scales only while no sequence has
// cached keys, or together with the content of the cache.
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
    at::Tensor k;  // float32, contiguous, with the shape above
    at::Tensor v;
  };

  // Allocates and initialises the scales. Layers that share another layer's keys share its scales.
  // Errors: InvalidArgument if a scale of a spec is not positive and finite; ResourceExhausted.
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
