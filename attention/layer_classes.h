// Groups the layers of a model that share step metadata, block tables and caches.
//
// A class is a set of layers that use the same step metadata: one batch (the step's rows, virtual
// rows of chunks, the encoder's keys, or contiguous keys) and one tile schedule. Layers of a class
// have the same kind, heads, head sizes, window, chunk size, v_in_k, q_dtype, kernel choice
// (KernelsFor()) and KV group. They may differ in scales, softcap, sinks and slopes, which are read
// from each layer's AttentionParams.
//
// A KV group is a set of layers that keep the same keys (cache/kv_group.h). Each group has one
// block table. The group depends on the keys that a layer can see: a window of window_left + 1
// tokens, a chunk, the encoder's input, or all keys. A layer that shares another layer's cache is
// in that layer's group.
//
//   // Gemma 2: 26 layers, alternately with a window of 4,096 tokens and without a window
//   absl::StatusOr<LayerClasses> classes = CollectLayerClasses(layers);
//   // class_of_layer {0, 1, 0, 1, ...}, classes[0].first_layer 0, classes[1].first_layer 1
//   // groups {sliding window 4096, full}, group_of_layer {0, 1, 0, 1, ...}
//
// A value; thread safety: const data.

#ifndef REPRISE_ATTENTION_LAYER_CLASSES_H_
#define REPRISE_ATTENTION_LAYER_CLASSES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/layer_spec.h"
#include "reprise/cache/kv_group.h"

namespace reprise {

// How the batch of a class is derived from the batch of the step.
enum class ClassBatch : int8_t {
  kRows,         // the step's rows
  kLocalRows,    // virtual rows of chunks (attention/metadata/local_virtual_batch.h)
  kEncoderKeys,  // rows over the encoder's keys (attention/metadata/cross_batch.h)
  kContiguous,   // a RaggedBatch: no cache
};

struct LayerClass {
  int first_layer = 0;  // the representative of the class
  ClassBatch batch = ClassBatch::kRows;
  std::optional<int> chunk_size = {};  // kLocalRows only
  std::optional<int> kv_group = {};    // absent: kContiguous
};

struct LayerClasses {
  std::vector<LayerClass> classes;
  std::vector<int> class_of_layer;
  std::vector<KvGroupSpec> groups;
  std::vector<std::optional<int>> group_of_layer;  // absent: a layer without a cache
  // The layer whose cache a layer reads: itself if it owns a cache, absent if it has no cache. A
  // layer that reads another layer's cache does not write to it.
  std::vector<std::optional<int>> cache_of_layer;

  int num_classes() const { return static_cast<int>(classes.size()); }
  int num_groups() const { return static_cast<int>(groups.size()); }
};

// Errors: InvalidArgument for an empty set of layers. Also, naming the layer and the field, for
//   - params that CheckAttentionParams() rejects (attention/checks.h);
//   - a chunk_size below 1, or on a layer that is not a decoder;
//   - a window on cross attention, whose queries and keys have no positions in common;
//   - v_in_k with more V columns than K columns;
//   - a q_dtype other than float32, float16, bfloat16 or an fp8 type;
//   - shares_kv_with a layer that is not an earlier one, shares a cache itself or has none, differs
//     in kind, heads, head sizes or v_in_k, or keeps fewer keys than this layer needs;
//   - shares_kv_with on a layer whose kind has no cache.
absl::StatusOr<LayerClasses> CollectLayerClasses(absl::Span<const LayerSpec> layers);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_LAYER_CLASSES_H_
