// Parts of a runner that supply model inputs other than token ids, set the scales of its cache, or
// watch its tensors.
//
// Thread safety: none; one owner each. The objects that they are given must outlive them.

#ifndef REPRISE_RUNNER_PARTS_INPUT_PARTS_H_
#define REPRISE_RUNNER_PARTS_INPUT_PARTS_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/runner/model.h"
#include "reprise/runner/parts/encoder_pass.h"
#include "reprise/runner/parts/step_embeddings.h"
#include "reprise/runner/runner_memory.h"
#include "reprise/runner/step_part.h"
#include "reprise/runner/trace/step_tracer.h"

namespace reprise {

// Runs the encoder over the inputs of new sequences, before the step's graph runs.
class EncoderPart final : public StepPart, private BatchInput {
 public:
  EncoderPart(std::unique_ptr<EncoderPass> pass, Model* model, const RunnerMemory* memory,
              StepTracer* tracer)
      : pass_(std::move(pass)), run_(this), model_(*model), memory_(*memory), tracer_(*tracer) {}

  // The memory of the pass is not counted: it is a ring of inputs and tile schedules.
  int64_t bytes() const override { return 0; }
  // The encoder runs outside of graphs.
  void AddTo(Fingerprint&) const override {}
  BatchInput* slot_input() override { return this; }
  BatchInput* step_input() override { return &run_; }

  // Runs the encoder over inputs outside of a batch. Used for measurements.
  absl::Status Run(absl::Span<const ScheduledEncode> encodes) {
    return pass_->Run(encodes, model_, memory_.model_layers());
  }

 private:
  class RunInput final : public BatchInput {
   public:
    explicit RunInput(EncoderPart* part) : part_(*part) {}
    absl::Status Apply(const ScheduledBatch& batch, const StepPlan& plan) override;

   private:
    EncoderPart& part_;
  };

  // Records the blocks of the cross groups.
  absl::Status Apply(const ScheduledBatch& batch, const StepPlan&) override {
    pass_->Follow(batch.updates);
    return absl::OkStatus();
  }

  std::unique_ptr<EncoderPass> pass_;
  RunInput run_;
  Model& model_;
  const RunnerMemory& memory_;
  StepTracer& tracer_;
};

// Copies the embeddings that callers pass to memory that the step's graph reads.
class EmbeddingPart final : public StepPart, private BatchInput, private StepStage {
 public:
  explicit EmbeddingPart(std::unique_ptr<StepEmbeddings> embeddings)
      : embeddings_(std::move(embeddings)) {}

  int64_t bytes() const override { return embeddings_->bytes(); }
  void AddTo(Fingerprint& fingerprint) const override { embeddings_->AddTo(fingerprint); }
  BatchInput* step_input() override { return this; }
  StepStage* stage() override { return this; }

 private:
  absl::Status Apply(const ScheduledBatch& batch, const StepPlan& plan) override;
  void Fill(const GraphKey& key, const StepVariant& variant, Step::Parts& parts) const override;

  std::unique_ptr<StepEmbeddings> embeddings_;
};

// Computes the scales of a quantised cache in the first step with rows, if the options require it.
class ScalePart final : public StepPart, private StepStage {
 public:
  ScalePart(const RunnerMemory* memory, bool calibrates)
      : memory_(*memory), calibrates_(calibrates) {}

  int64_t bytes() const override { return 0; }
  // RunnerMemory adds the scales together with the layers.
  void AddTo(Fingerprint&) const override {}
  StepStage* stage() override { return this; }

 private:
  void Fill(const GraphKey& key, const StepVariant& variant, Step::Parts& parts) const override;
  EagerReason EagerReasonFor(const StepPlan& plan) const override;
  void RanFor(EagerReason reason) override;

  const RunnerMemory& memory_;
  bool calibrates_;  // the next step with rows computes the scales
};

// Passes the tensors of a step to the watch of its variant.
class WatchPart final : public StepPart, private StepStage {
 public:
  int64_t bytes() const override { return 0; }
  void AddTo(Fingerprint&) const override {}
  StepStage* stage() override { return this; }

 private:
  void Fill(const GraphKey& key, const StepVariant& variant, Step::Parts& parts) const override;
  Work Before(const GraphKey& key, const StepVariant& variant) override;
  Work After(const GraphKey& key, const StepVariant& variant) override;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_PARTS_INPUT_PARTS_H_
