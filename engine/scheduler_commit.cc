// The result of a step: sampled tokens, and steps that failed.

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/base/catch_all.h"
#include "reprise/base/status_macros.h"
#include "reprise/engine/scheduler.h"
#include "reprise/engine/scheduling/cache_limits.h"
#include "reprise/engine/scheduling/draft_planner.h"
#include "reprise/engine/scheduling/open_batches.h"
#include "reprise/engine/scheduling/row_logits.h"
#include "reprise/engine/scheduling/sequence_state.h"
#include "reprise/engine/scheduling/sequence_table.h"

namespace reprise {

namespace {

// Gives the next generated token to the sequence's matcher and masker, unless the token is forced.
// Returns whether one of them ends the sequence. Errors: one of them threw.
absl::StatusOr<bool> AskCallbacks(SequenceState& sequence, int32_t token) {
  if (sequence.forced()) return false;
  // The masker gets the token even if the matcher ends the sequence.
  bool is_match = false;
  if (sequence.stop_matcher != nullptr) {
    REPRISE_RETURN_IF_ERROR(
        CallUser("StopMatcher::Ends()", [&] { is_match = sequence.stop_matcher->Ends(token); }));
  }
  bool may_continue = true;
  if (sequence.token_masker != nullptr) {
    REPRISE_RETURN_IF_ERROR(CallUser("TokenMasker::Accept()",
                                     [&] { may_continue = sequence.token_masker->Accept(token); }));
  }
  return is_match || !may_continue;
}

}  // namespace

void Scheduler::Commit(const StepResult& result, std::vector<TokenEvent>& events) {
  CHECK_EQ(result.tokens.size(), open_->oldest().size());
  Close(open_->TakeOldest(),
        [&](const OpenRow& row, int row_idx) { CommitRow(row, row_idx, result, events); });
}

void Scheduler::ObserveStep(absl::Duration duration, const StepResult& result) {
  drafts_->ObserveStep(duration, open_->oldest(), result);
}

void Scheduler::CommitFailed(const absl::Status& cause, std::vector<TokenEvent>& events) {
  drafts_->ObserveFailedStep();
  Close(open_->TakeOldest(),
        [&](const OpenRow& row, int) { End(*row.sequence, FinishReason::kError, cause, events); });
}

void Scheduler::Close(std::vector<OpenRow> batch,
                      absl::FunctionRef<void(const OpenRow& row, int row_idx)> commit) {
  for (size_t i = 0; i < batch.size(); ++i) {
    const OpenRow& row = batch[i];
    RequestState& added = *row.sequence->added;
    --added.num_open_rows;
    if (row.admission == row.sequence->admission) commit(row, static_cast<int>(i));
    table_->ForgetIfDone(added);
  }
  open_->Recycle(std::move(batch));
}

void Scheduler::CommitRow(const OpenRow& row, int row_idx, const StepResult& result,
                          std::vector<TokenEvent>& events) {
  SequenceState& sequence = *row.sequence;
  const bool has_no_token = row.output == RowOutput::kToken && result.tokens[row_idx] < 0;
  if (has_no_token || !CollectPromptLogProbs(row, row_idx, result)) {
    EndBroken(sequence, events);
    return;
  }
  if (row.num_drafts > 0) {
    CommitDrafts(row, row_idx, result, events);
    return;
  }
  drafts_->NoteFed(row);
  CommitTokens(sequence, row.num_tokens);
  if (row.encodes) {
    const absl::Status committed = blocks_.CommitEncoder(*sequence.slot);
    CHECK(committed.ok()) << committed;
  }
  if (!sequence.failure.ok()) {
    End(sequence, FinishReason::kError, sequence.failure, events);
    return;
  }
  for (int i = 0; i < row.num_new_tokens; ++i) {
    if (!TakeToken(row, row_idx, result.tokens[row_idx], result, events)) return;
  }
  if (sequence.max_generated() > 0 || row.first_token + row.num_tokens < sequence.prefill_end) {
    return;
  }
  End(sequence, FinishReason::kLength, absl::OkStatus(), events);  // the prompt is scored
  events.back().prompt_log_probs = sequence.added->prompt_log_probs;
}

void Scheduler::CommitDrafts(OpenRow row, int row_idx, const StepResult& result,
                             std::vector<TokenEvent>& events) {
  const SequenceState& sequence = *row.sequence;
  const absl::Span<const int32_t> tokens = result.NewTokens(row_idx);
  drafts_->Accept(row, tokens, static_cast<int>(result.tokens.size()));
  row.first_token = sequence.num_known - 1;
  // Each new token commits the keys of the token before it.
  for (const int32_t token : tokens) {
    CommitTokens(sequence, 1);
    if (!TakeToken(row, row_idx, token, result, events)) return;
  }
}

bool Scheduler::TakeToken(const OpenRow& row, int row_idx, int32_t sampled,
                          const StepResult& result, std::vector<TokenEvent>& events) {
  SequenceState& sequence = *row.sequence;
  const int fed = sequence.num_known - 1;  // the token whose logits give the new one
  if (!sequence.forced()) sequence.tokens.push_back(sampled);
  const int32_t token = sequence.tokens[sequence.num_known];
  std::optional<TokenLogProbs> log_probs;
  if (sequence.request().num_log_probs >= 0) {
    log_probs = LogProbsOf({row, row_idx, fed}, result, token, sequence.request().num_log_probs);
    if (std::isnan(log_probs->log_prob)) {
      EndBroken(sequence, events);
      return false;
    }
  }
  const absl::StatusOr<bool> is_complete = AskCallbacks(sequence, token);
  if (!is_complete.ok()) {
    End(sequence, FinishReason::kError, is_complete.status(), events);
    return false;
  }
  ++sequence.num_known;
  --sequence.num_in_flight;
  if (sequence.predicted.has_value()) {
    sequence.predicted->Follow(absl::MakeConstSpan(sequence.tokens)
                                   .subspan(sequence.num_prompt(), sequence.num_generated()));
  }
  const FinishReason finish = *is_complete ? FinishReason::kStop : ReasonToFinish(sequence, token);
  const bool is_first = sequence.num_generated() == 1;
  events.push_back({.sequence = sequence.id(),
                    .sample = sequence.sample,
                    .token = token,
                    .index = sequence.num_generated() - 1,
                    // For a tree, the host does not know which node the token was chosen at.
                    .row = row.num_levels < row.num_drafts ? -1 : row_idx,
                    .earlier = row.num_levels < row.num_drafts ? -1 : EarlierOf(row, fed),
                    .log_probs = std::move(log_probs),
                    .prompt_log_probs = is_first ? sequence.added->prompt_log_probs : nullptr,
                    .num_cached_tokens =
                        finish == FinishReason::kNone ? 0 : sequence.num_cached_tokens.value_or(0),
                    .finish = finish});
  if (finish == FinishReason::kNone) return true;
  LeaveSlot(sequence);
  table_->Finish(sequence);
  return false;
}

void Scheduler::EndBroken(SequenceState& sequence, std::vector<TokenEvent>& events) {
  // The keys may be broken, too, so no keys of the sequence are found as a prefix any longer.
  const absl::Status forgotten = blocks_.ForgetContent(*sequence.slot);
  CHECK(forgotten.ok()) << forgotten;
  End(sequence, FinishReason::kError,
      absl::InternalError(absl::StrCat("all logits are NaN or -inf after ", sequence.num_known,
                                       " tokens of the sequence: expected a logit above -inf, got ",
                                       "none")),
      events);
}

void Scheduler::CommitTokens(const SequenceState& sequence, int num_tokens) {
  // The tokens are known: earlier batches sampled them, and are committed.
  const int num_committed = blocks_.num_committed(*sequence.slot);
  DCHECK_LE(static_cast<size_t>(num_committed + num_tokens), sequence.tokens.size());
  const absl::Status committed = blocks_.Commit(
      *sequence.slot, absl::MakeConstSpan(sequence.tokens).subspan(num_committed, num_tokens));
  CHECK(committed.ok()) << committed;
  drafts_->NoteCommitted(sequence, {.first = num_committed, .end = num_committed + num_tokens});
}

FinishReason Scheduler::ReasonToFinish(const SequenceState& sequence, int32_t token) const {
  if (!sequence.forced() && absl::c_linear_search(sequence.request().stop_tokens, token)) {
    return FinishReason::kStop;
  }
  if (sequence.num_generated() >= sequence.max_generated()) return FinishReason::kLength;
  // The newest token has no keys yet; to continue, the cache must have room for them.
  if (sequence.num_known > limits_->MaxTokens(sequence)) {
    const bool is_full = sequence.num_known > limits_->max_tokens();
    return is_full && limits_->is_pool_the_limit() ? FinishReason::kCacheFull
                                                   : FinishReason::kLength;
  }
  return FinishReason::kNone;
}

}  // namespace reprise
