// The Scheduler's part at the end of a sequence, whatever ends it, and the proof of its invariants.

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "engine/scheduler.h"
#include "engine/scheduler_sequence.h"
#include "glog/logging.h"

namespace reprise {

absl::Status Scheduler::Cancel(SequenceId id, std::vector<TokenEvent>& events) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || it->second->num_unfinished == 0) {
    return absl::NotFoundError(
        absl::StrCat("sequence ", id.value(), " has ended, or was never added"));
  }
  AddedRequest& added = *it->second;
  for (Sequence& sequence : added.sequences) {
    if (sequence.finished) continue;
    End(sequence, FinishReason::kCancelled, absl::OkStatus(), events);
  }
  ForgetIfDone(added);
  return absl::OkStatus();
}

void Scheduler::EndExpired(absl::Time now, std::vector<TokenEvent>& events) {
  if (now < next_deadline_) return;
  next_deadline_ = absl::InfiniteFuture();
  // End() takes the sequence out of its list.
  const auto end_expired = [&](auto& sequences) {
    for (size_t i = 0; i < sequences.size();) {
      Sequence& sequence = *sequences[i];
      AddedRequest& added = *sequence.added;
      // A clock at its end is no reason to end what has no deadline.
      if (now < added.request.deadline || added.request.deadline == absl::InfiniteFuture()) {
        next_deadline_ = std::min(next_deadline_, added.request.deadline);
        ++i;
        continue;
      }
      End(sequence, FinishReason::kDeadline, absl::OkStatus(), events);
      ForgetIfDone(added);
    }
  };
  end_expired(running_);
  end_expired(waiting_);
}

void Scheduler::AbandonLaunch(const absl::Status& cause, std::vector<TokenEvent>& events) {
  CHECK(batch_was_launched_ && !open_.empty() && next_leaves_.empty())
      << "AbandonLaunch() takes back the batch that Schedule() has just returned";
  OpenBatch batch = std::move(open_.back());
  open_.pop_back();
  for (const OpenRow& row : batch) --row.sequence->added->num_open_rows;
  Recycle(std::move(batch));
  while (!running_.empty()) {
    AddedRequest& added = *running_.front()->added;
    End(*running_.front(), FinishReason::kError, cause, events);
    ForgetIfDone(added);
  }
  // The leaves of that batch are still to be told. A slot that was joined in it has not been
  // joined: if another sequence was there before, that one's leave is among them.
  for (const SlotId slot : next_leaves_) {
    const bool joined =
        absl::c_any_of(joins_, [&](const SlotJoin& join) { return join.slot == slot.value(); });
    if (!joined) leaves_.push_back(slot);
  }
  next_leaves_.clear();
  batch_was_launched_ = false;
}

void Scheduler::EndAll(const absl::Status& cause, std::vector<TokenEvent>& events) {
  while (!open_.empty()) {
    OpenBatch batch = TakeOldestBatch();
    for (const OpenRow& row : batch) {
      AddedRequest& added = *row.sequence->added;
      --added.num_open_rows;
      ForgetIfDone(added);
    }
    Recycle(std::move(batch));
  }
  const auto end_all = [&](auto& sequences) {
    while (!sequences.empty()) {
      AddedRequest& added = *sequences.front()->added;
      End(*sequences.front(), FinishReason::kError, cause, events);
      ForgetIfDone(added);
    }
  };
  end_all(running_);
  end_all(waiting_);
}

void Scheduler::End(Sequence& sequence, FinishReason reason, const absl::Status& error,
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
    const auto is_before = [](const Sequence* a, const Sequence* b) { return a->IsBefore(*b); };
    waiting_.erase(absl::c_lower_bound(waiting_, &sequence, is_before));
    DropStored(sequence);
  }
  sequence.finished = true;
  --sequence.added->num_unfinished;
}

void Scheduler::LeaveSlot(Sequence& sequence) {
  const absl::Status freed = blocks_.Free(*sequence.slot);
  CHECK(freed.ok()) << freed;
  VacateSlot(sequence);
}

void Scheduler::VacateSlot(Sequence& sequence) {
  next_leaves_.push_back(*sequence.slot);
  free_slots_.push_back(*sequence.slot);
  by_slot_[sequence.slot->value()] = nullptr;
  sequence.slot.reset();
  sequence.admission = 0;
  running_.erase(absl::c_find(running_, &sequence));
}

void Scheduler::Recycle(OpenBatch batch) {
  batch.clear();
  spare_.push_back(std::move(batch));
}

void Scheduler::ForgetIfDone(const AddedRequest& added) {
  if (added.num_unfinished == 0 && added.num_open_rows == 0) requests_.erase(added.id);
}

void Scheduler::CheckInvariants() const {
  blocks_.CheckInvariants();
  CheckSwapInvariants();
  std::vector<bool> taken(options_.max_num_seqs, false);
  for (const SlotId slot : free_slots_) {
    CHECK(!taken[slot.value()]) << "1: slot " << slot << " is free twice";
    CHECK(by_slot_[slot.value()] == nullptr) << "1: slot " << slot << " is free and has an owner";
    CHECK(!blocks_.contains(slot)) << "2: free slot " << slot << " holds blocks";
    taken[slot.value()] = true;
  }
  int num_unfinished = 0;
  for (const Sequence* sequence : running_) {
    CHECK(sequence->slot.has_value()) << "1: running sequence " << sequence->id() << " has no slot";
    CHECK(!taken[sequence->slot->value()]) << "1: slot " << *sequence->slot << " has two owners";
    CHECK(by_slot_[sequence->slot->value()] == sequence) << "1";
    taken[sequence->slot->value()] = true;
    CHECK_GE(blocks_.num_tokens(*sequence->slot), sequence->num_scheduled) << "2";
    CHECK_LE(blocks_.num_committed(*sequence->slot), sequence->num_scheduled) << "2";
    CHECK(!sequence->finished) << "1";
    ++num_unfinished;
  }
  for (const Sequence* sequence : waiting_) {
    CHECK(!sequence->slot.has_value() && sequence->admission == 0) << "1";
    CHECK(!sequence->finished) << "1";
    ++num_unfinished;
  }
  CHECK_EQ(free_slots_.size() + running_.size(), static_cast<size_t>(options_.max_num_seqs)) << "1";
  CHECK_LE(num_in_flight(), options_.max_steps_in_flight) << "3";
  CHECK(absl::c_is_sorted(running_, [](const Sequence* a, const Sequence* b) {
    if (a->request().priority != b->request().priority) {
      return a->request().priority > b->request().priority;
    }
    return a->admission < b->admission;
  })) << "4";
  CHECK(absl::c_is_sorted(waiting_, [](const Sequence* a, const Sequence* b) {
    return a->IsBefore(*b);
  })) << "4";
  absl::flat_hash_map<const AddedRequest*, int> num_open_rows;
  for (const OpenBatch& batch : open_) {
    for (const OpenRow& row : batch) ++num_open_rows[row.sequence->added];
  }
  for (const auto& [id, added] : requests_) {
    CHECK_EQ(added->num_open_rows, num_open_rows[added.get()]) << "6: request " << id;
    CHECK(added->num_unfinished > 0 || added->num_open_rows > 0) << "6: request " << id;
    num_unfinished -= added->num_unfinished;
  }
  CHECK_EQ(num_unfinished, 0) << "6";
}

}  // namespace reprise
