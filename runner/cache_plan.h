// The memory layout of a model's KV cache, and the number of cache blocks.
//
//   REPRISE_ASSIGN_OR_RETURN(CachePlan plan, CachePlan::Create(options, spec, classes));
//   REPRISE_ASSIGN_OR_RETURN(int num_blocks, plan.ChooseNumBlocks(free_bytes, other_bytes));
//   REPRISE_ASSIGN_OR_RETURN(KvCache cache, plan.Allocate(num_blocks, device));
//   std::vector<KvLayer> kv = plan.LayersOf(cache);   // one per layer of the spec
//
// If all layers are identical, in one KV group and with separate keys, each layer has its own
// tensors, which hold all blocks of the layer contiguously (cache/storage/kv_layout.h). Otherwise
// (several groups, different numbers of heads or head sizes, layers that share keys, layers without
// a cache) all layers share one pool of pages (cache/storage/kv_page_layout.h).
//
// A value; thread safety: const.

#ifndef REPRISE_RUNNER_CACHE_PLAN_H_
#define REPRISE_RUNNER_CACHE_PLAN_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/attention/layer_classes.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/cache/storage/kv_page_layout.h"
#include "reprise/runner/model.h"
#include "reprise/runner/model_runner_options.h"

namespace reprise {

class CachePlan {
 public:
  // REQUIRES: resolved options; `classes` are the classes of the spec's layers. Errors:
  // InvalidArgument as from the layouts.
  static absl::StatusOr<CachePlan> Create(const ModelRunnerOptions& options, const ModelSpec& spec,
                                          const LayerClasses& classes);

  // Returns CacheOptions::size as a number of blocks, or its default. `free_bytes`: free memory of
  // the device; nullopt if no limit is known. `other_bytes`: the part of free_bytes that graphs and
  // eager steps will take. Errors: InvalidArgument if NumBytes is too small for the null block and
  // one more block; ResourceExhausted if the default is limited by free memory that is too small
  // for both.
  absl::StatusOr<int> ChooseNumBlocks(std::optional<int64_t> free_bytes, int64_t other_bytes) const;

  // Allocates a cache with undefined content. Errors: as KvCache::Create().
  absl::StatusOr<KvCache> Allocate(int num_blocks, c10::Device device) const;

  // Returns the cache of each layer of the model. Layers that share keys have the same memory;
  // layers without a cache have an empty KvLayer.
  std::vector<KvLayer> LayersOf(const KvCache& cache) const;
  // Returns the layer of the cache that holds the keys of a layer of the model; nullopt if the
  // layer has no cache.
  std::optional<int> cache_layer(int layer) const { return cache_layer_[layer]; }

  bool has_pages() const { return std::holds_alternative<KvPageLayoutOptions>(layout_); }
  int64_t bytes_per_block() const { return bytes_per_block_; }

 private:
  CachePlan() = default;
  // Returns the maximum number of blocks of one sequence, over all groups.
  int64_t BlocksOfSequence() const;

  ModelRunnerOptions options_;
  std::vector<KvGroupSpec> groups_;
  std::variant<KvLayoutOptions, KvPageLayoutOptions> layout_;  // num_blocks is not set
  std::vector<std::optional<int>> cache_layer_;                // per layer of the model
  int64_t bytes_per_block_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_CACHE_PLAN_H_
