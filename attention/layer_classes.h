// What the layers of a model share: metadata of a step, block tables, and each other's caches.
//
// A class is a set of layers that one set of a step's metadata serves: one batch (the rows as they
// are, virtual rows of chunks, the encoder's keys, contiguous keys) and one work map. Layers of a
// class are alike in kind, heads, head sizes, window, chunk size, in whether V lies in K, and in
// the KV group. What differs beyond (scale, softcap, sinks, slopes) is a layer's own, read from its
// AttentionParams: such layers share a class.
//
// A KV group is a set of layers that keep keys alike (cache/kv_group.h): one block table each. It
// follows from what a layer can see: a window of window_left + 1 tokens, a chunk, the encoder's
// input, or everything. A layer that shares another's cache is in that one's group.
//
//   // Gemma 2, 26 layers, alternately with a window of 4,096 tokens and without:
//   absl::StatusOr<LayerClasses> classes = CollectLayerClasses(layers);
//   // class_of_layer {0, 1, 0, 1, ...}, classes[0].first_layer 0, classes[1].first_layer 1
//   // groups {sliding window 4096, full}, group_of_layer {0, 1, 0, 1, ...}
//
// A value; thread safety: const data.

#ifndef ATTENTION_LAYER_CLASSES_H_
#define ATTENTION_LAYER_CLASSES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/layer_spec.h"
#include "cache/kv_group.h"

namespace reprise {

// What makes the batch of a class from that of the step.
enum class ClassBatch : int8_t {
  kRows,         // the step's rows
  kLocalRows,    // virtual rows of chunks (attention/local_virtual_batch.h)
  kEncoderKeys,  // rows over the encoder's keys (attention/cross_batch.h)
  kContiguous,   // a RaggedBatch: no cache
};

struct LayerClass {
  int first_layer = 0;  // its representative: what it has in common with the class is the class's
  ClassBatch batch = ClassBatch::kRows;
  std::optional<int> chunk_size = {};  // of kLocalRows
  std::optional<int> kv_group = {};    // absent: kContiguous
};

struct LayerClasses {
  std::vector<LayerClass> classes;
  std::vector<int> class_of_layer;
  std::vector<KvGroupSpec> groups;
  std::vector<std::optional<int>> group_of_layer;  // absent: a layer without a cache
  // The layer whose cache a layer reads: itself if it has one of its own, absent without a cache. A
  // layer that reads another's writes nothing.
  std::vector<std::optional<int>> cache_of_layer;

  int num_classes() const { return static_cast<int>(classes.size()); }
  int num_groups() const { return static_cast<int>(groups.size()); }
};

// Errors: InvalidArgument for an empty set of layers, and, naming the layer and the field, for
//   - params that CheckAttentionParams() refuses (attention/params_check.h);
//   - a chunk_size below 1, or of a layer that is no decoder;
//   - v_in_k with more V columns than K columns;
//   - shares_kv_with a layer that is not an earlier one, shares a cache itself or has none, is of
//     another kind, of other heads, head sizes or v_in_k, or keeps fewer keys than this one needs;
//   - shares_kv_with of a layer that has no cache to share.
absl::StatusOr<LayerClasses> CollectLayerClasses(absl::Span<const LayerSpec> layers);

}  // namespace reprise

#endif  // ATTENTION_LAYER_CLASSES_H_
