// The end of sequences by a cancellation, a deadline or a failure, and the check of the scheduler's
// invariants.

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/engine/scheduler.h"
#include "reprise/engine/scheduling/batch_in_progress.h"
#include "reprise/engine/scheduling/open_batches.h"
#include "reprise/engine/scheduling/preemptor.h"
#include "reprise/engine/scheduling/sequence_state.h"
#include "reprise/engine/scheduling/sequence_table.h"

namespace reprise {

absl::Status Scheduler::Cancel(SequenceId id, std::vector<TokenEvent>& events) {
  RequestState* const added = table_->Find(id);
  if (added == nullptr || added->num_unfinished == 0) {
    return absl::NotFoundError(
        absl::StrCat("sequence ", id.value(), " has ended, or was never added"));
  }
  for (SequenceState& sequence : added->sequences) {
    if (sequence.finished) continue;
    End(sequence, FinishReason::kCancelled, absl::OkStatus(), events);
  }
  table_->ForgetIfDone(*added);
  return absl::OkStatus();
}

void Scheduler::EndExpired(absl::Time now, std::vector<TokenEvent>& events) {
  if (now < next_deadline_) return;
  next_deadline_ = absl::InfiniteFuture();
  // End() takes the sequence out of its list.
  const auto end_expired = [&](const auto& sequences) {
    for (size_t i = 0; i < sequences().size();) {
      SequenceState& sequence = *sequences()[i];
      const absl::Time deadline = sequence.added->request.deadline;
      // A sequence without a deadline does not end, even if `now` is InfiniteFuture().
      if (now < deadline || deadline == absl::InfiniteFuture()) {
        next_deadline_ = std::min(next_deadline_, deadline);
        ++i;
        continue;
      }
      EndAndForget(sequence, FinishReason::kDeadline, absl::OkStatus(), events);
    }
  };
  end_expired([&] { return table_->running(); });
  end_expired([&]() -> const auto& { return table_->waiting(); });
}

void Scheduler::AbandonLaunch(const absl::Status& cause, std::vector<TokenEvent>& events) {
  CHECK(batch_->can_take_back() && !open_->empty())
      << "AbandonLaunch() takes back the batch that Schedule() has just returned";
  Close(open_->TakeNewest(), [](const OpenRow&, int) {});
  while (table_->num_running() > 0) {
    EndAndForget(*table_->running().front(), FinishReason::kError, cause, events);
  }
  batch_->TakeBack();
}

void Scheduler::EndAll(const absl::Status& cause, std::vector<TokenEvent>& events) {
  while (!open_->empty()) Close(open_->TakeOldest(), [](const OpenRow&, int) {});
  while (table_->num_running() > 0) {
    EndAndForget(*table_->running().front(), FinishReason::kError, cause, events);
  }
  while (table_->num_waiting() > 0) {
    EndAndForget(*table_->waiting().front(), FinishReason::kError, cause, events);
  }
}

void Scheduler::EndAndForget(SequenceState& sequence, FinishReason reason,
                             const absl::Status& error, std::vector<TokenEvent>& events) {
  RequestState& added = *sequence.added;
  End(sequence, reason, error, events);
  table_->ForgetIfDone(added);
}

void Scheduler::End(SequenceState& sequence, FinishReason reason, const absl::Status& error,
                    std::vector<TokenEvent>& events) {
  events.push_back({.sequence = sequence.id(),
                    .sample = sequence.sample,
                    .index = sequence.num_generated(),
                    .num_cached_tokens = sequence.num_cached_tokens.value_or(0),
                    .finish = reason,
                    .error = error});
  if (sequence.slot.has_value()) {
    LeaveSlot(sequence);
  } else {
    table_->StopWaiting(sequence);
    preemptor_->Drop(sequence);
  }
  table_->Finish(sequence);
}

void Scheduler::LeaveSlot(SequenceState& sequence) {
  const SlotId slot = *sequence.slot;
  const absl::Status freed = blocks_.Free(slot);
  CHECK(freed.ok()) << freed;
  table_->Vacate(sequence);
  batch_->Leave(slot);
}

void Scheduler::CheckInvariants() const {
  blocks_.CheckInvariants();
  table_->CheckInvariants();
  batch_->CheckInvariants();
  open_->CheckInvariants();
  preemptor_->CheckInvariants();
  for (const SequenceState* sequence : table_->running()) {
    CHECK_GE(blocks_.num_tokens(*sequence->slot), sequence->num_scheduled) << "1";
    CHECK_LE(blocks_.num_committed(*sequence->slot), sequence->num_scheduled) << "1";
  }
  CHECK_EQ(blocks_.num_sequences(), table_->num_running()) << "1: a free slot holds blocks";
  absl::flat_hash_map<const RequestState*, int> num_open_rows;
  for (const std::vector<OpenRow>& batch : open_->batches()) {
    for (const OpenRow& row : batch) ++num_open_rows[row.sequence->added];
  }
  for (const auto& [id, request] : table_->requests()) {
    CHECK_EQ(request->num_open_rows, num_open_rows[request.get()]) << "3: request " << id;
  }
}

}  // namespace reprise
