#include "reprise/runner/runner_memory.h"

#include <utility>

#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<RunnerMemory>> RunnerMemory::Create(
    const RunnerMemoryOptions& options, std::unique_ptr<DeviceDriver> driver) {
  auto memory = std::unique_ptr<RunnerMemory>(new RunnerMemory(options, std::move(driver)));
  REPRISE_RETURN_IF_ERROR(
      CatchTorch([&] { return memory->driver().OnStream([&] { return memory->Allocate(); }); }));
  return memory;
}

absl::Status RunnerMemory::Allocate() {
  REPRISE_ASSIGN_OR_RETURN(metadata_, StepMetadata::Create(options_.metadata, driver_.get()));
  REPRISE_ASSIGN_OR_RETURN(steps_, StepMemory::Allocate(options_.steps, driver_->device()));
  if (options_.scales.has_value()) {
    REPRISE_ASSIGN_OR_RETURN(
        kv_scales_, KvScales::Allocate(options_.spec.layers, *options_.scales, driver_->device()));
  }
  model_classes_ = metadata_->ClassesOf(0, options_.num_model_layers);
  return absl::OkStatus();
}

absl::Status RunnerMemory::AllocateCache(const CachePlan& plan, int num_blocks) {
  block_store_.reset();  // freed before the new cache is allocated: both might not fit
  kv_cache_.reset();
  REPRISE_ASSIGN_OR_RETURN(kv_cache_, plan.Allocate(num_blocks, driver_->device()));
  num_blocks_ = num_blocks;
  for (int i = 0; kv_scales_ && i < static_cast<int>(options_.spec.layers.size()); ++i) {
    if (const std::optional<int> layer = plan.cache_layer(i)) {
      kv_cache_->SetScales(*layer, kv_scales_->k_scale(i), kv_scales_->v_scale(i));
    }
  }
  layers_ = plan.LayersOf(*kv_cache_);
  BlockStoreOptions store;
  if (options_.has_histories) {
    REPRISE_ASSIGN_OR_RETURN(block_tokens_,
                             BlockTokens::Allocate(num_blocks, options_.block_size,
                                                   options_.classes.groups, driver_->device()));
    store.with = {block_tokens_->blocks()};
  }
  REPRISE_ASSIGN_OR_RETURN(block_store_, BlockStore::Over(*kv_cache_, store));
  return absl::OkStatus();
}

void RunnerMemory::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddValue("max_seq_len", options_.metadata.max_seq_len);
  fingerprint.AddValue("block_size", options_.block_size);
  fingerprint.AddValue("num_blocks", num_blocks_);
  steps_->AddTo(fingerprint);
  metadata_->AddTo(fingerprint);
  if (block_tokens_.has_value()) block_tokens_->AddTo(fingerprint);
  for (const KvLayer& layer : layers_) {
    fingerprint.AddAddress("k", layer.k.data);
    fingerprint.AddAddress("v", layer.v.data);
    fingerprint.AddAddress("k scale", layer.k_scale.data);
    fingerprint.AddAddress("v scale", layer.v_scale.data);
  }
}

}  // namespace reprise
