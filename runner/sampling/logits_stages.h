// The stages between a step's forward pass and its tokens: which rows need which, their parameters
// on the way to the device, and log-probabilities on the way back.
//
//   REPRISE_ASSIGN_OR_RETURN(auto stages, LogitsStages::Create({.logits = {.max_log_probs = 5}, ...},
//                                                              memory));
//   // Each step, on its stream:
//   REPRISE_RETURN_IF_ERROR(stages->Check(batch));          // refuses, with nothing changed
//   stages->Plan(batch);                                    // is_needed() and scores() follow
//   REPRISE_RETURN_IF_ERROR(stages->Begin(batch));          // joins and masks
//   REPRISE_RETURN_IF_ERROR(stages->BeforeSample(step));
//   REPRISE_RETURN_IF_ERROR(Sample(...));
//   REPRISE_RETURN_IF_ERROR(stages->AfterSample(step, /*output=*/0));
//   if (stages->scores()) REPRISE_RETURN_IF_ERROR(stages->Score(scored, /*output=*/0));
//   // When the step has run, until its output is used again:
//   const RowLogProbsView log_probs = stages->log_probs(/*output=*/0);
//
// Stages run in this order: raw logits are kept, if log-probabilities need them; logits processors;
// the user's, in the order of the options. After the choice: log-probabilities are computed, tokens
// are counted, then the user's. A step in which no row that samples needs a stage enqueues nothing.
//
// Logits of known tokens (the earlier tokens of a row with RowLogits::kAll, the last of a row with a
// next_token) get log-probabilities alone, by Score(), as LogitsParams::num_known_log_probs asks: no
// stage is for them. Rows that sample are not among them, and do not pay for them.
//
// Parameters travel once, in the step in which a sequence joins. Masks of allowed tokens travel with
// the row, since they change with each token, in a ring of mapped memory that the kernel reads: no
// copy, no wait. The host knows a row's mask when it has seen the row's last token. So with several
// steps in flight a constrained row takes part in a step only after its previous one was awaited, and
// the other rows of the steps in between go on.
//
// Thread safety: none; one owner. No allocation after Create(), and no wait unless joins bring more
// than the ring holds.

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
  // Allocates on LibTorch's current stream. Errors: InvalidArgument naming the option;
  // ResourceExhausted; those of `memory`.
  static absl::StatusOr<std::unique_ptr<LogitsStages>> Create(const LogitsStagesOptions& options,
                                                              const LogitsStagesMemory& memory);

  // Whether the batch can be served. Errors: InvalidArgument, with nothing changed, naming the part:
  // what the options do not provide for, what CheckLogitsParams() refuses, slots or rows out of
  // range or twice, a mask of the wrong length or of a row that does not sample.
  absl::Status Check(const LogitsBatch& batch) const;

  // Whether sequences may ask for this, in any batch; its slot does not matter. Errors:
  // InvalidArgument naming the parameter.
  absl::Status CheckRequest(const LogitsRequest& request) const;

  // Whether the slot's sequence, as the batch leaves it, has asked for anything. False for slots out
  // of range.
  bool HasRequest(SlotId slot, const LogitsBatch& batch) const;

  // Selects the stages of the step of `batch`. Enqueues nothing. REQUIRES: Check(batch) is OK.
  void Plan(const LogitsBatch& batch);

  // Enqueues what joins and masks of the planned batch need. On the step's stream, before the other
  // two. Errors: those of the launches.
  absl::Status Begin(const LogitsBatch& batch);

  // On the step's stream, around Sample(). REQUIRES: at most max_rows rows. `output` is in
  // [0, max_steps_in_flight]: where log-probabilities go, which must not be that of a step that the
  // host still reads. Errors: those of the stages.
  absl::Status BeforeSample(const LogitsStep& step);
  absl::Status AfterSample(const LogitsStep& step, int output);

  // On the step's stream, after AfterSample(): log-probabilities of known tokens, for the slots that
  // ask for any. REQUIRES: max_log_probs >= 0; `output` as above. Errors: those of the launch.
  absl::Status Score(const ScoredLogits& scored, int output);

  // Of the step that was given `output`: [max_rows + max_earlier_logits] entries, one for each row of
  // the step's logits. REQUIRES: the step has run, and max_log_probs >= 0.
  RowLogProbsView log_probs(int output) const;

  // Whether the step that Plan() was called for has any stage, and any known token whose
  // log-probability is asked for.
  bool is_needed() const { return !selected_.empty(); }
  bool scores() const { return scores_; }
  int64_t device_bytes() const;

 private:
  // What the host knows of a slot.
  struct Slot {
    LogitsParams params = {};  // as on the device
    LogitsStageSet stages = 0;
  };

  explicit LogitsStages(const LogitsStagesOptions& options);
  absl::Status Allocate(const LogitsStagesMemory& memory);
  absl::Status CheckMask(const AllowedTokens& allowed, absl::Span<const int32_t> sample_slot) const;
  absl::Status CheckStep(const LogitsStep& step) const;
  // Notes the parameters of slots that join or leave, and in joins_ those that change on the device.
  void Join(const LogitsBatch& batch);
  void Select(const LogitsBatch& batch);

  LogitsStagesOptions options_;
  std::vector<Slot> slots_;           // [num_slots]
  std::vector<LogitsRequest> joins_;  // of the batch: those that change a slot on the device
  std::unique_ptr<LogitsSlotStates> states_;
  std::unique_ptr<ProcessorsStage> processors_;  // null: not provided for
  std::unique_ptr<LogProbsStage> log_probs_;     // likewise
  std::vector<LogitsStage*> selected_;           // of the step, in order
  bool scores_ = false;                          // of the step
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_STAGES_H_
