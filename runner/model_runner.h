// Runs the steps of a model on one device. A step refills the state of the slots, runs the model's
// forward pass (as a replayed graph or eagerly), and samples the tokens of its rows.
//
//   REPRISE_ASSIGN_OR_RETURN(auto runner, ModelRunner::Create(&model, {.max_num_seqs = 64}));
//   REPRISE_ASSIGN_OR_RETURN(StepBuilder steps, StepBuilder::Create(*runner));
//   REPRISE_RETURN_IF_ERROR(steps.Join(prompt, {}).status());
//   REPRISE_ASSIGN_OR_RETURN(const absl::Span<const NewToken> tokens, steps.Run());
//
// StepBuilder (runner/step_builder.h) creates the batches and owns the block tables. Callers with
// their own scheduler create the batches:
//
//   // A sequence joins slot 0 with a prompt; block 1 backs its first tokens.
//   const SlotJoin join[] = {JoinOf(SlotId(0), {}, prompt.size())};
//   const BlockTableUpdate update[] = {{.slot = SlotId(0), .column = 0, .block = BlockId(1)}};
//   const ScheduledRow prefill[] = {{.slot = SlotId(0), .tokens = prompt}};
//   REPRISE_ASSIGN_OR_RETURN(StepResult first,
//                            runner->Step({.joins = join, .updates = update, .rows = prefill}));
//   // From then on, each row continues with the last token of its slot.
//   const ScheduledRow decode[] = {{.slot = SlotId(0)}};
//   REPRISE_ASSIGN_OR_RETURN(StepResult second, runner->Step({.rows = decode}));
//
// Ownership. The runner owns the memory that a captured graph reads, except the model's weights:
// slot state, step arrays, KV cache, logits, tile schedules. Scheduler chooses the sequences of a
// step, and BlockManager chooses their blocks; the batch contains both. shape() has the sizes that
// Scheduler and BlockManager need.
//
// Steps in flight. Launch() returns when the step is enqueued; Await() returns when its tokens are
// known. Up to shape().max_steps_in_flight steps may be launched before the oldest is awaited,
// because rows without tokens read the last token of their slot on the device. All work is ordered
// by one stream, so the next batch may reuse every block that this batch releases.
//
// Errors. A step fails in one of three places:
//
//   Launch() returns an error   the batch was rejected; nothing has changed
//   Await() returns an error    the step failed (the model's forward pass, memory, a faulty row, a
//                               replay that ReplayCheck finds wrong): the keys and tokens of its
//                               rows are undefined, so their sequences must leave. Other sequences
//                               are not affected, unless status() is an error
//   status() is an error        the device has failed, or the slots on the device differ from the
//                               host's mirror: no sequence can continue
//
// A batch may also contain the following; see each field (runner/slots/scheduled_batch.h):
//
//   ScheduledBatch::logits_requests      penalties, biases, masks, log-probabilities, own stages
//   ScheduledBatch::copies               copies of blocks: forks, and prefixes that end in a block
//   ScheduledBatch::swap_outs, swap_ins  moves of preempted sequences to host memory, and back
//   ScheduledBatch::encodes              the input of an encoder, for the cross groups of a slot
//   ScheduledBatch::embeddings           embeddings of images etc. that replace token embeddings
//   ScheduledRow::drafts, num_drafts     drafts to verify: several tokens per step
//                                        (docs/speculation.md). Until the step is awaited, the host
//                                        only has an upper bound of the sequence's length. Allocate
//                                        blocks for that length, and do not pass tokens for this
//                                        slot
//
// Thread safety: none; one owner. The model must outlive the runner.

#ifndef REPRISE_RUNNER_MODEL_RUNNER_H_
#define REPRISE_RUNNER_MODEL_RUNNER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/graphs/graph_report.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/kv_scales.h"
#include "reprise/runner/model.h"
#include "reprise/runner/model_runner_options.h"
#include "reprise/runner/parts/runner_parts.h"
#include "reprise/runner/parts/token_choice.h"
#include "reprise/runner/rank_session.h"
#include "reprise/runner/runner_memory.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/slots/slot_mirror.h"
#include "reprise/runner/step_cascade.h"
#include "reprise/runner/step_graphs.h"
#include "reprise/runner/step_outputs.h"
#include "reprise/runner/step_plan.h"
#include "reprise/runner/step_result.h"
#include "reprise/runner/step_runner.h"
#include "reprise/runner/trace/step_tracer.h"

namespace reprise {

// Memory use of the device, as measured by ModelRunner::Create().
struct MemoryUse {
  int64_t step_bytes = 0;   // slots, step arrays, logits, parts of the runner
  int64_t eager_bytes = 0;  // memory for the tensors of the largest step; 0 on the CPU
  int64_t graph_bytes = 0;  // estimate for all graphs; 0 on the CPU
  // Free memory after the allocation of slots, step arrays and logits, and before the allocation of
  // the cache; nullopt on the CPU.
  std::optional<int64_t> free_bytes = {};
  int64_t cache_bytes = 0;
  int64_t swap_bytes = 0;  // host memory
};

class ModelRunner final : public StepRunner {
 public:
  // Allocates, measures the memory of the largest step (on a GPU), sizes the cache and, with
  // GraphSetOptions::Mode::kEager, captures. `driver`: a driver of the model's device; null:
  // MakeDeviceDriver() creates it. Errors: InvalidArgument or Unimplemented naming the option or
  // the field of the spec; ResourceExhausted if memory does not suffice; errors of the model's
  // forward pass; errors of other ranks.
  static absl::StatusOr<std::unique_ptr<ModelRunner>> Create(
      Model* model, const ModelRunnerOptions& options,
      std::unique_ptr<DeviceDriver> driver = nullptr);
  ~ModelRunner() override;

  const RunnerShape& shape() const override { return shape_; }

  // Enqueues a step. An empty batch is valid. Changes nothing on failure. Errors: InvalidArgument
  // if the batch does not fit, for example: slots out of range or duplicate; more tokens, updates
  // or earlier logits than the options allow; a sequence longer than max_seq_len; a position
  // without a block in one of the groups; token ids outside the vocabulary; or embeddings or
  // positions that the model does not accept. FailedPrecondition if shape().max_steps_in_flight
  // steps are in flight, or if status() is an error.
  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override;

  // Blocks until the step's tokens are known. Steps must be awaited in the order of their launch.
  // Errors: FailedPrecondition, with nothing changed, if `step` is not the oldest step in flight.
  // Any other error means that the step failed: the model's error, the device's error, or Internal
  // if the device found rows that it could not serve.
  absl::StatusOr<StepResult> Await(int64_t step) override;

  // Calls Launch() and Await().
  absl::StatusOr<StepResult> Step(const ScheduledBatch& batch);

  // Returns the logits [rows, vocab_size] of the step that was awaited last, in the runner's logits
  // dtype. With StepLogits::kOfEvery, these are the model's raw logits, valid as long as the step's
  // StepResult. Otherwise, they are the buffer after penalties, biases and masks, valid until the
  // next Launch(). Errors: FailedPrecondition if the step's logits are not kept (names the option),
  // if a later launch has overwritten them, or if `step` is not the step that was awaited last or
  // has failed.
  absl::StatusOr<at::Tensor> logits(int64_t step) const;

  // Returns the raw logits [num_earlier_logits, vocab_size] of the tokens before the last of each
  // row, for rows with RowLogits::kAll and for rows with drafts (FirstEarlierLogits()). Undefined
  // tensor if the step's logits are kept but it has no such tokens. Validity and errors: as
  // logits().
  absl::StatusOr<at::Tensor> earlier_logits(int64_t step) const;

  // Checks that sequences may make this request (ModelRunnerOptions::logits). Ignores its slot.
  // Errors: InvalidArgument naming the parameter.
  absl::Status CheckLogits(const LogitsRequest& request) const override {
    return choice_->CheckRequest(request);
  }

  // OK, or the reason why no further step can run. Does not include device errors that have not
  // been reported yet.
  absl::Status status() const override { return status_; }

  // The device, with its index, and the stream of all steps.
  c10::Device device() const { return driver().device(); }
  c10::Stream stream() const { return driver().stream(); }

  const GraphReport& graph_report() const override { return graphs_->report(); }
  // Decides whether steps read common prefixes once, and counts the reasons; null if no step does.
  const StepCascade* cascade() const { return cascade_.has_value() ? &*cascade_ : nullptr; }
  // Whether tokens may be sampled from sharded logits (DebugOptions::sample_shards).
  bool samples_shards() const { return samples_shards_; }
  // The cache, for reading, or for overwriting blocks between steps on stream(). Captured steps
  // contain the addresses of the cache and of its scales, so these must not change.
  const KvCache& kv_cache() const { return memory_->kv_cache(); }
  const MemoryUse& memory_use() const { return memory_use_; }
  // Measured if the runner can swap, because preemption compares both costs; otherwise nullopt.
  std::optional<StepTimes> step_times() const override { return step_times_; }
  // The scales of each layer, including a drafter's layers, for reading, or for overwriting on
  // stream(). Null if the cache is not quantised.
  const KvScales* kv_scales() const { return memory_->kv_scales(); }
  // The current values of addresses and sizes that captured graphs contain. In debug builds and
  // with ReplayCheck::kEveryReplay, a replay is rejected if one of them has changed since the
  // capture.
  Fingerprint fingerprint() const { return graphs_->fingerprint(); }

 private:
  friend class RunnerSetup;  // creates runners

  explicit ModelRunner(Collectives* collectives) : ranks_(collectives) {}
  DeviceDriver& driver() const { return memory_->driver(); }

  // Errors: FailedPrecondition if no further step can be launched.
  absl::Status CheckCanLaunch() const;
  // Decides how to run the step of an accepted batch, and stores the plan in the step's output.
  void Plan(const ScheduledBatch& batch, const StepDemand& demand, StepOutput& output);
  // Applies the batch to the slots and step arrays on the device.
  absl::Status ApplySlotInputs(const ScheduledBatch& batch, const StepPlan& plan);
  // Enqueues the step's inputs, its forward pass and the sampling of its tokens.
  absl::Status RunStep(const ScheduledBatch& batch, StepPlan& plan);
  // Returns the output of the step that was awaited last. Errors: as logits().
  absl::StatusOr<const StepOutput*> KeptOutput(int64_t step) const;

  RunnerShape shape_;
  RankSession ranks_;
  std::unique_ptr<RunnerMemory> memory_;
  std::optional<StepOutputs> outputs_;
  std::optional<StepTracer> tracer_;
  RunnerParts parts_;
  TokenChoice* choice_ = nullptr;  // one of the parts
  std::optional<StepCascade> cascade_;
  std::unique_ptr<StepGraphs> graphs_;  // destroyed before the objects that its graphs read
  std::optional<SlotMirror> mirror_;
  bool samples_shards_ = false;
  MemoryUse memory_use_;
  std::optional<StepTimes> step_times_;
  absl::Status status_;
  int64_t num_launched_ = 0;
  int64_t num_awaited_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_MODEL_RUNNER_H_
