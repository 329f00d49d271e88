// Chooses a step's tokens from its logits: runs the stages that the step's rows request, and one of
// several choosers.
//
//   REPRISE_RETURN_IF_ERROR(choice->Note(batch));         // an error changes nothing
//   choice->Plan(plan);                                   // after the batch was accepted
//   REPRISE_RETURN_IF_ERROR(choice->Choose(plan));        // after the forward pass is enqueued
//
// The first chooser that serves a step chooses its tokens. In all other steps, a PlainChooser
// samples the rows' tokens from their logits.
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_PARTS_TOKEN_CHOICE_H_
#define REPRISE_RUNNER_PARTS_TOKEN_CHOICE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/runner/model_runner_options.h"
#include "reprise/runner/runner_memory.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/sampling/logits_stages.h"
#include "reprise/runner/step_outputs.h"
#include "reprise/runner/step_part.h"

namespace reprise {

// Samples the tokens of all rows that need one from their logits.
class PlainChooser final : public TokenChooser {
 public:
  explicit PlainChooser(DeviceDriver* driver) : driver_(*driver) {}
  bool Serves(const StepPlan&) const override { return true; }
  absl::Status Choose(const StepPlan& plan, const LogitsStep& logits, int32_t* out) override;

 private:
  DeviceDriver& driver_;
};

class TokenChoice final : public StepPart, private BatchInput {
 public:
  // Allocates. The objects that it is given must outlive it. Errors: as LogitsStages::Create().
  static absl::StatusOr<std::unique_ptr<TokenChoice>> Create(const RunnerShape& shape,
                                                             const LogitsOptions& logits,
                                                             const RunnerMemory* memory,
                                                             StepOutputs* outputs);

  // Adds a chooser. Choosers are tried in the order in which they were added.
  void AddChooser(TokenChooser* chooser) { choosers_.push_back(chooser); }
  // Returns the chooser for steps that no other chooser serves.
  TokenChooser* plain_chooser() { return &plain_chooser_; }

  // Checks that sequences may make this request (StepRunner::CheckLogits()).
  absl::Status CheckRequest(const LogitsRequest& request) const {
    return stages_->CheckRequest(request);
  }

  // Records the input of the stages for a batch. Errors: InvalidArgument if the stages cannot serve
  // a request; then nothing changes.
  absl::Status Note(const ScheduledBatch& batch);

  // Completes the plan of the last batch of Note(). REQUIRES: the batch has been accepted.
  void Plan(StepPlan& plan);

  // Enqueues the choice of the step's tokens, the stages before and after it, and log-probabilities
  // of known tokens. Uses the step's stream.
  absl::Status Choose(const StepPlan& plan);

  // Returns the log-probabilities of a step that has run. REQUIRES: has_log_probs().
  RowLogProbsView log_probs(int output) const { return stages_->log_probs(output); }
  bool has_log_probs() const { return has_log_probs_; }

  int64_t bytes() const override { return stages_->device_bytes(); }
  // Stages run after the graph, so the graph contains none of their addresses.
  void AddTo(Fingerprint&) const override {}
  BatchInput* slot_input() override { return this; }

 private:
  TokenChoice(const RunnerMemory* memory, StepOutputs* outputs)
      : memory_(*memory), outputs_(*outputs), plain_chooser_(&memory->driver()) {}
  TokenChooser& ChooserOf(const StepPlan& plan);
  absl::Status Apply(const ScheduledBatch& batch, const StepPlan& plan) override;
  absl::Status ScoreKnownTokens(const StepPlan& plan);

  const RunnerMemory& memory_;
  StepOutputs& outputs_;
  std::unique_ptr<LogitsStages> stages_;
  std::vector<TokenChooser*> choosers_;
  PlainChooser plain_chooser_;
  bool has_log_probs_ = false;
  LogitsBatch noted_;                  // requests of the last batch of Note()
  std::vector<int32_t> sample_slot_;   // slot per row of that batch; -1: the row samples no token
  std::vector<int32_t> scored_slots_;  // scored rows of that batch
  std::vector<AllowedTokens> masks_;   // masks of that batch's rows
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_PARTS_TOKEN_CHOICE_H_
