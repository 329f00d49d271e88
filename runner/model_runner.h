// Runs the steps of a model on one device. A step refills the state of the slots, runs the model's
// forward pass, as a replayed graph or eagerly, and samples a token for each row.
//
//   REPRISE_ASSIGN_OR_RETURN(auto runner, ModelRunner::Create(&model, {.max_num_seqs = 64}));
//   REPRISE_ASSIGN_OR_RETURN(StepBuilder steps, StepBuilder::Create(*runner));
//   REPRISE_RETURN_IF_ERROR(steps.Join(prompt, {}).status());
//   REPRISE_ASSIGN_OR_RETURN(const absl::Span<const NewToken> tokens, steps.Run());
//
// StepBuilder (runner/step_builder.h) makes the batches and owns the block tables. Callers that have
// a scheduler make the batches themselves:
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
// Ownership. The runner owns all memory that a captured graph reads: slot state, step arrays, KV
// cache, logits, work maps. Scheduler chooses the sequences of a step, BlockManager their blocks; the
// batch states both. shape() has the sizes that Scheduler and BlockManager need.
//
// Steps in flight. Launch() returns when the step is enqueued; Await() returns when its tokens are
// known. Up to shape().max_steps_in_flight steps may be launched before the oldest is awaited, since
// rows without tokens take the last token of their slot on the device. One stream orders all of it,
// so the next batch may reuse every block that this one releases.
//
// Errors. A step fails in one of three places:
//
//   Launch() returns an error   the batch was refused; nothing has changed
//   Await() returns an error    the step failed (the model's forward pass, memory, a broken row, a
//                               replay that ReplayCheck finds wrong): the keys and tokens of its
//                               rows are undefined, so their sequences must leave; other sequences
//                               are as they were
//   status() is an error        the device has failed: no sequence can go on
//
// A batch may also contain the following; see each field (runner/slots/scheduled_batch.h):
//
//   ScheduledBatch::logits_requests      penalties, biases, masks, log-probabilities, own stages
//   ScheduledBatch::copies               copies of blocks: forks, and prefixes that end in a block
//   ScheduledBatch::swap_outs, swap_ins  moves of preempted sequences to host memory, and back
//   ScheduledBatch::encodes              the input of an encoder, for the cross groups of a slot
//   ScheduledBatch::embeddings           embeddings of images and the like, in place of tokens'
//   ScheduledRow::drafts, num_drafts     drafts to verify: several tokens a step
//                                        (docs/speculation.md). Until the step is awaited, the host
//                                        knows only the greatest possible length of the sequence:
//                                        blocks must be there for all of its tokens, and no row may
//                                        bring tokens
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

// Memory of the device, as ModelRunner::Create() measured it.
struct MemoryUse {
  int64_t step_bytes = 0;   // slots, step arrays, logits
  int64_t eager_bytes = 0;  // most that tensors of the largest step take; 0 on the CPU
  int64_t graph_bytes = 0;  // estimate for all graphs; 0 on the CPU
  // Free before the cache was allocated, with nothing of the three above in use but step_bytes;
  // nullopt on the CPU.
  std::optional<int64_t> free_bytes = {};
  int64_t cache_bytes = 0;
  int64_t swap_bytes = 0;  // of the host
};

class ModelRunner final : public StepRunner {
 public:
  // Allocates, measures what the largest step takes, sizes the cache and, in
  // GraphSetOptions::Mode::kEager, captures. `driver`: of the model's device; null: the device's
  // own (MakeDeviceDriver()). Errors: InvalidArgument naming the option or the spec's field;
  // ResourceExhausted if memory does not suffice; whatever the model's forward pass returns.
  static absl::StatusOr<std::unique_ptr<ModelRunner>> Create(
      Model* model, const ModelRunnerOptions& options,
      std::unique_ptr<DeviceDriver> driver = nullptr);
  ~ModelRunner() override;

  const RunnerShape& shape() const override { return shape_; }

  // Enqueues a step. An empty batch is legal. Errors, with nothing changed: InvalidArgument for a
  // batch that does not fit: slots out of range or twice, more rows, tokens, updates or earlier
  // logits than the options allow, a sequence beyond max_seq_len, a position without a block in one
  // of the groups, token ids outside the vocabulary, embeddings or positions that the model does
  // not take; FailedPrecondition if shape().max_steps_in_flight steps are in flight, or the device
  // has failed.
  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override;

  // Blocks until the step's tokens are known. Steps are awaited in the order of their launch.
  // Errors: FailedPrecondition, with nothing changed, for another step than the oldest in flight;
  // else the step has failed: what the model returned, the device's error, or Internal if the
  // device found rows that it could not serve.
  absl::StatusOr<StepResult> Await(int64_t step) override;

  // Launch() and Await().
  absl::StatusOr<StepResult> Step(const ScheduledBatch& batch);

  // The logits [rows, vocab_size] of the step that was awaited last, of the runner's logits dtype.
  // With StepLogits::kOfEvery, the model's raw logits, valid as long as the step's StepResult;
  // otherwise the buffer after penalties, biases and masks, valid until the next Launch().
  // Errors: FailedPrecondition if the step's logits are not kept, naming the option; if a later
  // launch has overwritten them; if `step` is not the step that was awaited last, or has failed.
  absl::StatusOr<at::Tensor> logits(int64_t step) const;

  // The raw logits [num_earlier_logits, vocab_size] of the tokens before the last of each row, for
  // rows with RowLogits::kAll and for rows with drafts (FirstEarlierLogits()). An undefined tensor
  // if the step's logits are kept but it has no such tokens. Validity and errors: as logits().
  absl::StatusOr<at::Tensor> earlier_logits(int64_t step) const;

  // InvalidArgument, naming the parameter, unless sequences may ask for this
  // (ModelRunnerOptions::logits). Its slot does not matter.
  absl::Status CheckLogits(const LogitsRequest& request) const override {
    return choice_->CheckRequest(request);
  }

  // OK, or why no further step can run. What the device does not know yet is not in it.
  absl::Status status() const override { return status_; }

  // With its index, and the stream of all steps.
  c10::Device device() const { return driver().device(); }
  c10::Stream stream() const { return driver().stream(); }

  const GraphReport& graph_report() const override { return graphs_->report(); }
  // Whether steps read common prefixes once, and why not; null if none ever does.
  const StepCascade* cascade() const { return cascade_.has_value() ? &*cascade_ : nullptr; }
  // Whether tokens are chosen from shares of the vocabulary (DebugOptions::sample_shards).
  bool samples_shards() const { return samples_shards_; }
  // To read, or to overwrite blocks between steps on stream(). Captured steps hold its addresses and
  // scales, so both are fixed.
  const KvCache& kv_cache() const { return memory_->kv_cache(); }
  const MemoryUse& memory_use() const { return memory_use_; }
  // Measured for runners that swap, since preemption weighs both; else nullopt.
  std::optional<StepTimes> step_times() const override { return step_times_; }
  // The scales of each layer of the model, to read, or to overwrite on stream(); null if the cache
  // is not quantised.
  const KvScales* kv_scales() const { return memory_->kv_scales(); }
  // The current values that captured graphs contain: addresses and sizes. Debug builds and
  // ReplayCheck::kEveryReplay refuse a replay if a value differs from the one at capture.
  Fingerprint fingerprint() const { return graphs_->fingerprint(); }

 private:
  friend class RunnerSetup;  // makes runners

  explicit ModelRunner(Collectives* collectives) : ranks_(collectives) {}
  DeviceDriver& driver() const { return memory_->driver(); }

  // FailedPrecondition unless another step can be launched.
  absl::Status CheckCanLaunch() const;
  // Decides about the step of a batch that has been accepted, in the step's output.
  void Plan(const ScheduledBatch& batch, const StepDemand& demand, StepOutput& output);
  // Brings slots and step arrays up to date with the batch.
  absl::Status ApplySlotInputs(const ScheduledBatch& batch, const StepPlan& plan);
  // Enqueues the step's own inputs, its forward pass and the choice of its tokens.
  absl::Status RunStep(const ScheduledBatch& batch, StepPlan& plan);
  // The output of the step that was awaited last. Errors: those of logits().
  absl::StatusOr<const StepOutput*> KeptOutput(int64_t step) const;

  RunnerShape shape_;
  RankSession ranks_;
  std::unique_ptr<RunnerMemory> memory_;
  std::optional<StepOutputs> outputs_;
  std::optional<StepTracer> tracer_;
  RunnerParts parts_;
  TokenChoice* choice_ = nullptr;  // one of the parts
  std::optional<StepCascade> cascade_;
  std::unique_ptr<StepGraphs> graphs_;  // destroyed before all that its graphs read
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
