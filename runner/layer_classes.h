// Which layers of a model can share a step's attention metadata.
//
// A class is a set of layers that are alike in everything the work map looks at: heads, head sizes
// and window. What differs beyond (scale, softcap, sinks, slopes) is a layer's own and read from
// its LayerSpec.
//
//   LayerClasses classes = CollectLayerClasses(spec.layers);
//   // Gemma 2, 26 layers: class_of_layer {0, 1, 0, 1, ...}, representatives {0, 1}

#ifndef RUNNER_LAYER_CLASSES_H_
#define RUNNER_LAYER_CLASSES_H_

#include <vector>

#include "absl/types/span.h"
#include "attention/layer_spec.h"

namespace reprise {

struct LayerClasses {
  std::vector<int> class_of_layer;   // one a layer
  std::vector<int> representatives;  // one a class: its first layer

  int num_classes() const { return static_cast<int>(representatives.size()); }
};

LayerClasses CollectLayerClasses(absl::Span<const LayerSpec> layers);

}  // namespace reprise

#endif  // RUNNER_LAYER_CLASSES_H_
