// The Scheduler's part after a step: sampled tokens, and steps that failed.

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "engine/scheduler.h"
#include "engine/scheduler_sequence.h"
#include "glog/logging.h"

namespace reprise {

Scheduler::OpenBatch Scheduler::TakeOldestBatch() {
  CHECK(!open_.empty());
  OpenBatch batch = std::move(open_.front());
  open_.erase(open_.begin());
  return batch;
}

void Scheduler::Commit(const StepOutput& output, std::vector<TokenEvent>& events) {
  OpenBatch batch = TakeOldestBatch();
  CHECK_EQ(output.tokens.size(), batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const OpenRow& row = batch[i];
    AddedRequest& added = *row.sequence->added;
    --added.num_open_rows;
    if (row.admission == row.sequence->admission) {
      CommitRow(row, static_cast<int>(i), output, events);
    }
    ForgetIfDone(added);
  }
  Recycle(std::move(batch));
}

void Scheduler::ObserveStep(absl::Duration duration, const StepOutput& output) {
  CHECK(!open_.empty());
  const OpenBatch& batch = open_.front();
  CHECK_EQ(output.tokens.size(), batch.size());
  TimedStep step = {.num_rows = static_cast<int>(batch.size()),
                    .us = absl::ToDoubleMicroseconds(duration)};
  for (size_t i = 0; i < batch.size(); ++i) {
    const OpenRow& row = batch[i];
    const absl::Span<const int32_t> new_tokens = output.NewTokens(i);
    const bool is_prompt = row.num_tokens > 1 + row.num_drafts;  // a chunk of it
    if (is_prompt || (row.num_drafts > 0 && !HasProposed(row, new_tokens))) {
      draft_costs_.ObserveOtherStep();
      return;
    }
    step.num_drafts = std::max(step.num_drafts, row.num_levels);
  }
  draft_costs_.ObserveStep(step);
}

void Scheduler::CommitFailed(const absl::Status& cause, std::vector<TokenEvent>& events) {
  OpenBatch batch = TakeOldestBatch();
  draft_costs_.ObserveOtherStep();
  for (const OpenRow& row : batch) {
    AddedRequest& added = *row.sequence->added;
    --added.num_open_rows;
    if (row.admission == row.sequence->admission) {
      End(*row.sequence, FinishReason::kError, cause, events);
    }
    ForgetIfDone(added);
  }
  Recycle(std::move(batch));
}

void Scheduler::CommitRow(const OpenRow& row, int row_idx, const StepOutput& output,
                          std::vector<TokenEvent>& events) {
  Sequence& sequence = *row.sequence;
  const bool has_no_token = row.output == RowOutput::kToken && output.tokens[row_idx] < 0;
  if (has_no_token || !CollectPromptLogProbs(row, row_idx, output)) {
    EndBroken(sequence, events);
    return;
  }
  if (row.num_drafts > 0) {
    CommitDrafts(row, row_idx, output, events);
    return;
  }
  if (row.feeds_drafter && sequence.num_drafted >= blocks_.num_committed(*sequence.slot)) {
    sequence.num_drafted = blocks_.num_committed(*sequence.slot) + row.num_tokens;
  }
  CommitTokens(sequence, row.num_tokens);
  if (row.encodes) {
    const absl::Status committed = blocks_.CommitEncoder(*sequence.slot);
    CHECK(committed.ok()) << committed;
  }
  for (int i = 0; i < row.num_new_tokens; ++i) {
    if (!TakeToken(row, row_idx, output.tokens[row_idx], output, events)) return;
  }
  if (sequence.max_generated() > 0 || row.first_token + row.num_tokens < sequence.prefill_end) {
    return;
  }
  End(sequence, FinishReason::kLength, absl::OkStatus(), events);  // the prompt is scored
  events.back().prompt_log_probs = sequence.added->prompt_log_probs;
}

void Scheduler::CommitDrafts(OpenRow row, int row_idx, const StepOutput& output,
                             std::vector<TokenEvent>& events) {
  Sequence& sequence = *row.sequence;
  const absl::Span<const int32_t> tokens = output.NewTokens(row_idx);
  const int num_accepted = static_cast<int>(tokens.size()) - 1;
  CHECK(0 <= num_accepted && num_accepted <= row.num_levels)
      << "expected 1 to " << 1 + row.num_levels << " new tokens, got " << tokens.size();
  const int num_drafted_before = sequence.num_drafted;
  if (HasProposed(row, tokens)) {
    sequence.draft_length.Observe(row.num_levels, num_accepted);
    draft_costs_.ObserveRow({.num_drafts = row.num_levels,
                             .num_accepted = num_accepted,
                             .num_rows = static_cast<int>(output.tokens.size())});
    speculation_statistics_.Add(row.num_levels, num_accepted, row.num_drafts);
    // The newest token, and the drafts before the last as far as they were accepted.
    const bool keeps_drafts = options_.drafter_keys == DrafterKeys::kOfDrafts;
    if (!row.has_given_drafts) {
      sequence.num_drafted =
          sequence.num_known + (keeps_drafts ? std::min(row.num_levels - 1, num_accepted) : 0);
    }
  } else {
    ++speculation_statistics_.num_catch_up_rows;
    sequence.num_drafted += 1 + row.num_drafts;
  }
  // Of committed tokens; CommitTokens() does it of the others.
  NoteDrafted(sequence,
              {.first = num_drafted_before,
               .end = std::min(sequence.num_drafted, blocks_.num_committed(*sequence.slot))});
  sequence.num_in_flight -= row.num_levels - num_accepted;
  sequence.num_scheduled -= row.num_drafts - num_accepted;
  row.first_token = sequence.num_known - 1;
  // The keys of a token are committed when it is known that the text goes on behind it.
  for (const int32_t token : tokens) {
    CommitTokens(sequence, 1);
    if (!TakeToken(row, row_idx, token, output, events)) return;
  }
}

bool Scheduler::TakeToken(const OpenRow& row, int row_idx, int32_t sampled,
                          const StepOutput& output, std::vector<TokenEvent>& events) {
  Sequence& sequence = *row.sequence;
  const int fed = sequence.num_known - 1;  // the token whose logits give the new one
  if (!sequence.forced()) sequence.tokens.push_back(sampled);
  const int32_t token = sequence.tokens[sequence.num_known];
  std::optional<TokenLogProbs> log_probs;
  if (sequence.request().num_log_probs >= 0) {
    log_probs = LogProbsOf(row, row_idx, fed, output, token, sequence.request().num_log_probs);
    if (std::isnan(log_probs->log_prob)) {
      EndBroken(sequence, events);
      return false;
    }
  }
  ++sequence.num_known;
  --sequence.num_in_flight;
  if (sequence.predicted.has_value()) {
    sequence.predicted->Follow(absl::MakeConstSpan(sequence.tokens)
                                   .subspan(sequence.num_prompt(), sequence.num_generated()));
  }
  const FinishReason finish = ReasonToFinish(sequence, token);
  const bool is_first = sequence.num_generated() == 1;
  events.push_back({.sequence = sequence.id(),
                    .sample = sequence.sample,
                    .token = token,
                    .index = sequence.num_generated() - 1,
                    // Of a tree only the device knows the node.
                    .row = row.num_levels < row.num_drafts ? -1 : row_idx,
                    .earlier = row.num_levels < row.num_drafts ? -1 : EarlierOf(row, fed),
                    .log_probs = std::move(log_probs),
                    .prompt_log_probs = is_first ? sequence.added->prompt_log_probs : nullptr,
                    .num_cached_tokens =
                        finish == FinishReason::kNone ? 0 : sequence.num_cached_tokens.value_or(0),
                    .finish = finish});
  if (finish == FinishReason::kNone) return true;
  LeaveSlot(sequence);
  sequence.finished = true;
  --sequence.added->num_unfinished;
  return false;
}

void Scheduler::EndBroken(Sequence& sequence, std::vector<TokenEvent>& events) {
  // Its keys may be no better than its logits: those of this row are not committed, and earlier ones
  // of it are not found any more.
  const absl::Status forgotten = blocks_.ForgetContent(*sequence.slot);
  CHECK(forgotten.ok()) << forgotten;
  End(sequence, FinishReason::kError,
      absl::InternalError(absl::StrCat("no token could be chosen or scored behind ",
                                       sequence.num_known, " tokens of the sequence: expected a ",
                                       "logit above -inf, got none")),
      events);
}

void Scheduler::CommitTokens(const Sequence& sequence, int num_tokens) {
  // They are known now: the batches before a step have sampled its input tokens.
  const int num_committed = blocks_.num_committed(*sequence.slot);
  DCHECK_LE(static_cast<size_t>(num_committed + num_tokens), sequence.tokens.size());
  const absl::Status committed = blocks_.Commit(
      *sequence.slot, absl::MakeConstSpan(sequence.tokens).subspan(num_committed, num_tokens));
  CHECK(committed.ok()) << committed;
  NoteDrafted(sequence, {.first = num_committed, .end = num_committed + num_tokens});
}

void Scheduler::NoteDrafted(const Sequence& sequence, const TokenSpan& range) {
  if (!drafted_blocks_.has_value()) return;
  drafted_blocks_->Set(blocks_.blocks(*sequence.slot, drafted_group_), range, sequence.num_drafted);
}

FinishReason Scheduler::ReasonToFinish(Sequence& sequence, int32_t token) const {
  if (!sequence.forced()) {
    // The matcher and the masker see every token.
    const bool is_match = sequence.stop_matcher != nullptr && sequence.stop_matcher->Ends(token);
    const bool is_complete =
        sequence.token_masker != nullptr && !sequence.token_masker->Accept(token);
    if (is_match || is_complete || absl::c_linear_search(sequence.request().stop_tokens, token)) {
      return FinishReason::kStop;
    }
  }
  if (sequence.num_generated() >= sequence.max_generated()) return FinishReason::kLength;
  // The newest token has no keys yet, and would need room for them to continue.
  if (sequence.num_known > MaxCachedTokens(sequence)) {
    const bool is_full = sequence.num_known > max_cached_tokens_;
    return is_full && max_cached_tokens_ < options_.max_seq_len ? FinishReason::kCacheFull
                                                                : FinishReason::kLength;
  }
  return FinishReason::kNone;
}

}  // namespace reprise
