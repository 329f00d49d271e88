// Creates a ModelRunner: allocates, measures, sizes the cache and captures graphs. The object only
// lives during ModelRunner::Create().
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_RUNNER_SETUP_H_
#define REPRISE_RUNNER_RUNNER_SETUP_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/layer_classes.h"
#include "reprise/runner/cache_plan.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/device/device_timer.h"
#include "reprise/runner/model.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/model_runner_options.h"
#include "reprise/runner/parts/block_mover.h"
#include "reprise/runner/parts/input_parts.h"
#include "reprise/runner/parts/rank_parts.h"

namespace reprise {

class RunnerSetup {
 public:
  // `options`: the caller's options, not resolved.
  RunnerSetup(Model* model, const ModelRunnerOptions& options) : model_(*model), given_(options) {}

  // Null driver: creates the driver of the device. Errors: as ModelRunner::Create().
  absl::StatusOr<std::unique_ptr<ModelRunner>> Run(std::unique_ptr<DeviceDriver> driver);

 private:
  // Sets options_, with all defaults. Fails on all ranks if their options differ.
  absl::Status ResolveOptions();
  // Returns the model's spec, followed by a drafter's layers. Among ranks that shard the keys, only
  // the first has sinks.
  ModelSpec SpecWithDrafter() const;
  RunnerShape MakeShape(const ModelSpec& spec, const LayerClasses& classes,
                        const DeviceDriver& driver) const;
  RunnerMemoryOptions MemoryOptions(const ModelSpec& spec, const LayerClasses& classes,
                                    c10::Device device) const;
  ContextRowsOptions ContextOptions(const LayerClasses& classes, c10::Device device) const;

  absl::Status Allocate(std::unique_ptr<DeviceDriver> driver);
  absl::Status AddParts();
  absl::Status AddEncoder();
  absl::Status AddEmbeddings();
  absl::Status AddShards();
  void AddCascade();
  absl::Status CreateGraphs();

  // Runs together with all other ranks.
  absl::Status SetUp();
  absl::Status SizeCache();
  absl::Status MeasureSteps(const CachePlan& plan);
  absl::Status AllocateCache(const CachePlan& plan, int num_blocks);
  absl::Status AllocateSwapBlocks();
  absl::Status CaptureGraphs();

  bool attention_in_graphs() const {
    return options_.debug.attention == AttentionLaunch::kInGraphs;
  }
  // Runs a step of at most max_num_tokens tokens, after an encoder pass of at most
  // max_encoder_step_tokens.
  absl::Status RunLargestStep();
  // Runs a step of at most `num_tokens` tokens in `num_rows` rows, the first of them as long as
  // possible; all their blocks are the null block. Records marks 0 and 1 of `timer` before and
  // after it, unless the timer is null.
  absl::Status RunStepOf(int num_rows, int num_tokens, DeviceTimer* timer);
  absl::StatusOr<double> TimeStepOf(int num_rows, int num_tokens, DeviceTimer* timer);
  absl::Status TimeSteps();

  Model& model_;
  ModelRunnerOptions given_;
  ModelRunnerOptions options_;  // resolved
  std::unique_ptr<ModelRunner> runner_;
  // Parts of the runner that the set-up itself uses; null if the runner lacks the part.
  BlockMover* mover_ = nullptr;
  EncoderPart* encoder_ = nullptr;
  ShardPart* shards_ = nullptr;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_RUNNER_SETUP_H_
