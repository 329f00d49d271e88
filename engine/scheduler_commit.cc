// The Scheduler's part after a step: sampled tokens, and sequences that end or are preempted.

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "engine/scheduler.h"
#include "engine/scheduler_sequence.h"
#include "glog/logging.h"

namespace reprise {

void Scheduler::Commit(absl::Span<const int32_t> tokens, std::vector<TokenEvent>& events) {
  CHECK(!open_.empty());
  OpenBatch batch = std::move(open_.front());
  open_.erase(open_.begin());
  CHECK_EQ(tokens.size(), batch.size());
  for (size_t row = 0; row < batch.size(); ++row) {
    Sequence& sequence = *batch[row].sequence;
    --sequence.num_open_rows;
    if (batch[row].run == sequence.run) {
      CommitTokens(sequence, batch[row].num_tokens);
      if (batch[row].encodes) {
        const absl::Status committed = blocks_.CommitEncoder(*sequence.slot);
        CHECK(committed.ok()) << committed;
      }
    }
    if (batch[row].run == sequence.run && batch[row].output == RowOutput::kToken) {
      const int32_t token = sequence.forced() ? sequence.tokens[sequence.num_known] : tokens[row];
      CHECK_GE(token, 0) << "row " << row << " of the step gave no token";
      if (!sequence.forced()) sequence.tokens.push_back(token);
      ++sequence.num_known;
      --sequence.num_in_flight;
      const FinishReason finish = ReasonToFinish(sequence, token);
      events.push_back({.sequence = sequence.id,
                        .token = token,
                        .index = sequence.num_generated() - 1,
                        .row = static_cast<int>(row),
                        .finish = finish});
      if (finish != FinishReason::kNone) {
        LeaveSlot(sequence);
        sequence.finished = true;
      }
    }
    if (sequence.finished && sequence.num_open_rows == 0) sequences_.erase(sequence.id);
  }
  batch.clear();
  spare_.push_back(std::move(batch));
}

void Scheduler::CommitTokens(const Sequence& sequence, int num_tokens) {
  // They are known now: the batches before a step have sampled its input tokens.
  const int num_committed = blocks_.num_committed(*sequence.slot);
  DCHECK_LE(num_committed + num_tokens, sequence.num_known);
  const absl::Status committed = blocks_.Commit(
      *sequence.slot, absl::MakeConstSpan(sequence.tokens).subspan(num_committed, num_tokens));
  CHECK(committed.ok()) << committed;
}

FinishReason Scheduler::ReasonToFinish(const Sequence& sequence, int32_t token) const {
  if (!sequence.forced() && absl::c_linear_search(sequence.request.stop_tokens, token)) {
    return FinishReason::kStop;
  }
  if (sequence.num_generated() >= sequence.max_generated()) return FinishReason::kLength;
  // The newest token has no keys yet, and would need room for them to continue.
  if (sequence.num_known > max_cached_tokens_) {
    return max_cached_tokens_ < options_.max_seq_len ? FinishReason::kCacheFull
                                                     : FinishReason::kLength;
  }
  return FinishReason::kNone;
}

void Scheduler::LeaveSlot(Sequence& sequence) {
  const absl::Status freed = blocks_.Free(*sequence.slot);
  CHECK(freed.ok()) << freed;
  next_leaves_.push_back(*sequence.slot);
  free_slots_.push_back(*sequence.slot);
  sequence.slot.reset();
  ++sequence.run;
  running_.erase(absl::c_find(running_, &sequence));
}

void Scheduler::PreemptLast() {
  Sequence& last = *running_.back();
  LeaveSlot(last);
  // The slot leaves in the batch that is being made: it may be joined again there.
  leaves_.push_back(next_leaves_.back());
  next_leaves_.pop_back();
  waiting_.push_front(&last);
  ++num_preemptions_;
}

void Scheduler::CheckInvariants() const {
  blocks_.CheckInvariants();
  std::vector<bool> taken(options_.max_num_seqs, false);
  for (const SlotId slot : free_slots_) {
    CHECK(!taken[slot.value()]) << "1: slot " << slot << " is free twice";
    taken[slot.value()] = true;
  }
  for (const Sequence* sequence : running_) {
    CHECK(sequence->slot.has_value()) << "1: running sequence " << sequence->id << " has no slot";
    CHECK(!taken[sequence->slot->value()]) << "1: slot " << *sequence->slot << " has two owners";
    taken[sequence->slot->value()] = true;
    CHECK_GE(blocks_.num_tokens(*sequence->slot), sequence->num_scheduled) << "2";
    CHECK_LE(blocks_.num_committed(*sequence->slot), sequence->num_scheduled) << "2";
    CHECK(!sequence->finished) << "1";
  }
  for (const Sequence* sequence : waiting_) CHECK(!sequence->slot.has_value()) << "1";
  CHECK_EQ(free_slots_.size() + running_.size(), static_cast<size_t>(options_.max_num_seqs)) << "1";
  CHECK_LE(num_in_flight(), options_.max_steps_in_flight) << "3";
}

}  // namespace reprise
