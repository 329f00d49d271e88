// The memory of a runner that captured graphs read: slots, step arrays, logits, metadata and the KV
// cache. Addresses are constant once graphs are captured.
//
//   REPRISE_ASSIGN_OR_RETURN(auto memory, RunnerMemory::Create(options, std::move(driver)));
//   REPRISE_RETURN_IF_ERROR(memory->AllocateCache(plan, num_blocks));   // call again to resize
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_RUNNER_MEMORY_H_
#define REPRISE_RUNNER_RUNNER_MEMORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/layer_classes.h"
#include "reprise/cache/storage/block_store.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layer.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/runner/cache_plan.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/kv_scales.h"
#include "reprise/runner/model.h"
#include "reprise/runner/speculation/block_tokens.h"
#include "reprise/runner/step_memory.h"
#include "reprise/runner/step_metadata.h"

namespace reprise {

struct RunnerMemoryOptions {
  ModelSpec spec;  // its layers are the layers of the model, then the layers of a drafter
  int num_model_layers = 0;  // number of the model's layers
  LayerClasses classes;      // of all layers
  int block_size = 0;
  bool has_histories = false;  // stores the token of each cache position (BlockTokens)
  StepMetadataOptions metadata = {};
  StepMemoryShape steps = {};
  std::optional<KvScaleShape> scales = {};  // nullopt: the cache is not quantised
};

class RunnerMemory {
 public:
  // Allocates everything except the cache, on the driver's stream. Errors: as the allocations of
  // its parts.
  static absl::StatusOr<std::unique_ptr<RunnerMemory>> Create(const RunnerMemoryOptions& options,
                                                              std::unique_ptr<DeviceDriver> driver);

  // Frees the cache, then allocates a cache with `num_blocks` blocks. Errors: as
  // CachePlan::Allocate(); ResourceExhausted.
  absl::Status AllocateCache(const CachePlan& plan, int num_blocks);
  // Drops the cache. Its tensors are freed when block_store() releases them in AllocateCache().
  void FreeCache() { kv_cache_.reset(); }

  DeviceDriver& driver() const { return *driver_; }
  const ModelSpec& spec() const { return options_.spec; }
  const LayerClasses& classes() const { return options_.classes; }
  int num_model_layers() const { return options_.num_model_layers; }
  const StepMemory& steps() const { return *steps_; }
  StepMemory& steps() { return *steps_; }
  const StepMetadata& metadata() const { return *metadata_; }
  // The classes of the model's layers, without a drafter's layers.
  absl::Span<const int> model_classes() const { return model_classes_; }
  const KvCache& kv_cache() const { return *kv_cache_; }
  const KvScales* kv_scales() const { return kv_scales_.has_value() ? &*kv_scales_ : nullptr; }
  // One entry per layer. layers() includes a drafter's layers, model_layers() does not.
  absl::Span<const KvLayer> layers() const { return layers_; }
  absl::Span<const KvLayer> model_layers() const {
    return layers().first(options_.num_model_layers);
  }
  // Number of blocks of the current cache; smaller while memory is measured.
  int num_blocks() const { return num_blocks_; }
  // The storage of the cache's blocks, for copies.
  const BlockStore& block_store() const { return *block_store_; }
  // Null if the runner keeps no histories.
  const BlockTokens* block_tokens() const {
    return block_tokens_.has_value() ? &*block_tokens_ : nullptr;
  }
  const StepMetadataOptions& metadata_options() const { return options_.metadata; }
  DType logits_dtype() const { return spec().logits_dtype.value_or(spec().dtype); }

  // Bytes of slots, step arrays and logits.
  int64_t step_bytes() const { return steps_->bytes(); }
  void AddTo(Fingerprint& fingerprint) const;

 private:
  RunnerMemory(const RunnerMemoryOptions& options, std::unique_ptr<DeviceDriver> driver)
      : options_(options), driver_(std::move(driver)) {}
  absl::Status Allocate();

  RunnerMemoryOptions options_;
  std::unique_ptr<DeviceDriver> driver_;
  std::unique_ptr<StepMemory> steps_;
  std::unique_ptr<StepMetadata> metadata_;
  std::vector<int> model_classes_;
  std::optional<KvScales> kv_scales_;
  std::optional<KvCache> kv_cache_;
  std::vector<KvLayer> layers_;
  std::optional<BlockTokens> block_tokens_;
  std::optional<BlockStore> block_store_;
  int num_blocks_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_RUNNER_MEMORY_H_
