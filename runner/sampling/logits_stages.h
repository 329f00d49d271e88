// The stages between a step's forward pass and its tokens: selects the stages that the rows
// request, transfers their parameters to the device, and transfers log-probabilities to the host.
//
//   REPRISE_ASSIGN_OR_RETURN(auto stages, LogitsStages::Create({.logits = {.max_log_probs = 5}, ...},
//                                                              memory));
//   // Each step, on its stream:
//   REPRISE_RETURN_IF_ERROR(stages->Check(batch));          // rejects; changes nothing
//   stages->Plan(batch);                                    // sets is_needed() and scores()
//   REPRISE_RETURN_IF_ERROR(stages->Begin(batch));          // joins and masks
//   REPRISE_RETURN_IF_ERROR(stages->BeforeSample(step));
//   REPRISE_RETURN_IF_ERROR(Sample(...));
//   REPRISE_RETURN_IF_ERROR(stages->AfterSample(step, /*output=*/0));
//   if (stages->scores()) REPRISE_RETURN_IF_ERROR(stages->Score(scored, /*output=*/0));
//   // After the step has run, until its output is reused:
//   const RowLogProbsView log_probs = stages->log_probs(/*output=*/0);
//
// Before the choice, stages run in this order: raw logits are copied if log-probabilities need
// them; logits processors; the user's stages, in the order of the options. After the choice:
// log-probabilities are computed, tokens are counted, then the user's stages run. If no sampling
// row of a step needs a stage, BeforeSample() and AfterSample() enqueue nothing.
//
// Score() computes log-probabilities of known tokens, as requested by
// LogitsParams::num_known_log_probs: of the earlier tokens of a row with RowLogits::kAll, and of
// the last token of a row with a next_token. No other stage applies to these logits. Sampling rows
// are not affected and have no extra cost.
//
// Parameters are transferred once, in the step in which a sequence joins. Masks of allowed tokens
// change with each token, so they are transferred with the row, in a ring of mapped memory that the
// kernel reads: no copy, no wait. The host can compute a row's mask only after it has received the
// row's last token. With several steps in flight, a constrained row therefore takes part in a step
// only after its previous step was awaited. The other rows take part in the steps in between.
//
// Thread safety: not thread-safe; one owner. Does not allocate after Create(). Waits only if joins
// need more space than the ring has.

#ifndef REPRISE_RUNNER_SAMPLING_LOGITS_STAGES_H_
#define REPRISE_RUNNER_SAMPLING_LOGITS_STAGES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/runner/sampling/built_in_stages.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/sampling/logits_stage.h"

namespace reprise {

class LogitsStages {
 public:
  // Allocates on LibTorch's current stream. Errors: InvalidArgument, naming the option;
  // ResourceExhausted; those of `memory`.
  static absl::StatusOr<std::unique_ptr<LogitsStages>> Create(const LogitsStagesOptions& options,
                                                              const LogitsStagesMemory& memory);

  // Checks whether the stages can serve the batch. Changes nothing. Errors: InvalidArgument, naming
  // the part: a request or a mask that the options do not enable, a request that
  // CheckLogitsParams() rejects, slots or rows that are out of range, two requests for one slot,
  // two masks for one row, a mask of the wrong length or for a row that does not sample.
  absl::Status Check(const LogitsBatch& batch) const;

  // Checks whether a sequence may make this request in any batch; the slot is ignored. Errors:
  // InvalidArgument, naming the parameter.
  absl::Status CheckRequest(const LogitsRequest& request) const;

  // Whether the slot's sequence, after `batch`, has requested anything. Returns false for slots out
  // of range.
  bool HasRequest(SlotId slot, const LogitsBatch& batch) const;

  // Selects the stages of the step of `batch`. Enqueues nothing. REQUIRES: Check(batch) is OK.
  void Plan(const LogitsBatch& batch);

  // Enqueues the work for the joins of the planned batch and sets its masks. Call on the step's
  // stream, before BeforeSample(). Errors: those of the launches.
  absl::Status Begin(const LogitsBatch& batch);

  // Call on the step's stream, before and after Sample(). `output`, in [0, max_steps_in_flight],
  // selects the buffer for log-probabilities; the host must not be reading it any more. Errors:
  // InvalidArgument, naming the argument, for example if there are more than max_rows rows; those
  // of the stages.
  absl::Status BeforeSample(const LogitsStep& step);
  absl::Status AfterSample(const LogitsStep& step, int output);

  // Computes log-probabilities of known tokens for the slots that request them. Call on the step's
  // stream, after AfterSample(). REQUIRES: max_log_probs >= 0; `output` as above. Errors:
  // InvalidArgument, naming the argument; those of the launch.
  absl::Status Score(const ScoredLogits& scored, int output);

  // Returns the log-probabilities of the step that used `output`: [max_rows + max_earlier_logits]
  // entries, one per row of the step's logits. REQUIRES: the step has run, and max_log_probs >= 0.
  RowLogProbsView log_probs(int output) const;

  // Whether the planned step needs a stage, and whether it has a known token whose log-probability
  // is requested.
  bool is_needed() const { return !selected_.empty(); }
  bool scores() const { return scores_; }
  int64_t device_bytes() const;

 private:
  // The host's copy of a slot's state.
  struct Slot {
    LogitsParams params = {};  // as on the device
    LogitsStageSet stages = 0;
  };

  explicit LogitsStages(const LogitsStagesOptions& options);
  absl::Status Allocate(const LogitsStagesMemory& memory);
  absl::Status CheckMask(const AllowedTokens& allowed, absl::Span<const int32_t> sample_slot) const;
  absl::Status CheckStep(const LogitsStep& step) const;
  // Stores the parameters of slots that join or leave, and collects in joins_ those that change on
  // the device.
  void Join(const LogitsBatch& batch);
  void Select(const LogitsBatch& batch);

  LogitsStagesOptions options_;
  std::vector<Slot> slots_;           // [num_slots]
  std::vector<LogitsRequest> joins_;  // the batch's requests that change a slot on the device
  std::unique_ptr<LogitsSlotStates> states_;
  std::unique_ptr<ProcessorsStage> processors_;  // null: not enabled
  std::unique_ptr<LogProbsStage> log_probs_;     // null: not enabled
  std::vector<LogitsStage*> selected_;           // stages of the step, in order
  bool scores_ = false;                          // whether the step needs Score()
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_STAGES_H_
