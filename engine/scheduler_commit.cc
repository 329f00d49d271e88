// The Scheduler's part after a step: sampled tokens, and steps that failed.

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

void Scheduler::Commit(absl::Span<const int32_t> tokens, std::vector<TokenEvent>& events) {
  OpenBatch batch = TakeOldestBatch();
  CHECK_EQ(tokens.size(), batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const OpenRow& row = batch[i];
    AddedRequest& added = *row.sequence->added;
    --added.num_open_rows;
    if (row.admission == row.sequence->admission) {
      CommitRow(row, static_cast<int>(i), tokens[i], events);
    }
    ForgetIfDone(added);
  }
  Recycle(std::move(batch));
}

void Scheduler::CommitFailed(const absl::Status& cause, std::vector<TokenEvent>& events) {
  OpenBatch batch = TakeOldestBatch();
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

void Scheduler::CommitRow(const OpenRow& row, int row_idx, int32_t token,
                          std::vector<TokenEvent>& events) {
  Sequence& sequence = *row.sequence;
  if (row.output == RowOutput::kToken && token < 0) {
    // Its keys may be no better than its logits: they are not committed.
    End(sequence, FinishReason::kError,
        absl::InternalError(absl::StrCat("no token could be chosen behind ", sequence.num_known,
                                         " tokens of the sequence: expected a logit above -inf, ",
                                         "got none (", token, ")")),
        events);
    return;
  }
  CommitTokens(sequence, row.num_tokens);
  if (row.encodes) {
    const absl::Status committed = blocks_.CommitEncoder(*sequence.slot);
    CHECK(committed.ok()) << committed;
  }
  if (row.output != RowOutput::kToken) return;
  if (sequence.forced()) {
    token = sequence.tokens[sequence.num_known];
  } else {
    sequence.tokens.push_back(token);
  }
  ++sequence.num_known;
  --sequence.num_in_flight;
  const FinishReason finish = ReasonToFinish(sequence, token);
  events.push_back({.sequence = sequence.id(),
                    .sample = sequence.sample,
                    .token = token,
                    .index = sequence.num_generated() - 1,
                    .row = row_idx,
                    .finish = finish});
  if (finish == FinishReason::kNone) return;
  LeaveSlot(sequence);
  sequence.finished = true;
  --sequence.added->num_unfinished;
}

void Scheduler::CommitTokens(const Sequence& sequence, int num_tokens) {
  // They are known now: the batches before a step have sampled its input tokens.
  const int num_committed = blocks_.num_committed(*sequence.slot);
  DCHECK_LE(num_committed + num_tokens, sequence.num_known);
  const absl::Status committed = blocks_.Commit(
      *sequence.slot, absl::MakeConstSpan(sequence.tokens).subspan(num_committed, num_tokens));
  CHECK(committed.ok()) << committed;
}

FinishReason Scheduler::ReasonToFinish(Sequence& sequence, int32_t token) const {
  if (!sequence.forced()) {
    // The matcher sees every token.
    const bool is_match = sequence.stop_matcher != nullptr && sequence.stop_matcher->Ends(token);
    if (is_match || absl::c_linear_search(sequence.request().stop_tokens, token)) {
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
