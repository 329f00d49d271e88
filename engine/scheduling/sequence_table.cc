#include "reprise/engine/scheduling/sequence_table.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "glog/logging.h"

namespace reprise {
namespace {

bool ArrivedBefore(const SequenceState* a, const SequenceState* b) { return a->IsBefore(*b); }

bool HasPriorityOver(const SequenceState* a, const SequenceState* b) {
  return a->request().priority > b->request().priority;
}

}  // namespace

SequenceTable::SequenceTable(int num_slots) : by_slot_(num_slots, nullptr) {
  free_slots_.reserve(num_slots);
  for (int slot = num_slots - 1; slot >= 0; --slot) free_slots_.emplace_back(slot);
  running_.reserve(num_slots);
}

RequestState& SequenceTable::Add(std::unique_ptr<RequestState> request) {
  request->id = SequenceId(next_id_++);
  request->num_unfinished = static_cast<int>(request->sequences.size());
  RequestState& added = *requests_.emplace(request->id, std::move(request)).first->second;
  for (int i = 0; i < added.num_unfinished; ++i) {
    added.sequences[i].added = &added;
    added.sequences[i].sample = i;
    Wait(added.sequences[i]);
  }
  return added;
}

RequestState* SequenceTable::Find(SequenceId id) const {
  const auto it = requests_.find(id);
  return it == requests_.end() ? nullptr : it->second.get();
}

void SequenceTable::ForgetIfDone(const RequestState& request) {
  if (request.num_unfinished == 0 && request.num_open_rows == 0) requests_.erase(request.id);
}

void SequenceTable::Admit(SequenceState& sequence) {
  StopWaiting(sequence);
  const SlotId slot = free_slots_.back();
  free_slots_.pop_back();
  by_slot_[slot.value()] = &sequence;
  sequence.slot = slot;
  sequence.admission = ++num_admissions_;
  running_.insert(absl::c_upper_bound(running_, &sequence, HasPriorityOver), &sequence);
}

void SequenceTable::Vacate(SequenceState& sequence) {
  free_slots_.push_back(*sequence.slot);
  by_slot_[sequence.slot->value()] = nullptr;
  sequence.slot.reset();
  sequence.admission = 0;
  running_.erase(absl::c_find(running_, &sequence));
}

void SequenceTable::Wait(SequenceState& sequence) {
  // Fast path: most sequences belong at the end.
  if (waiting_.empty() || ArrivedBefore(waiting_.back(), &sequence)) {
    waiting_.push_back(&sequence);
    return;
  }
  waiting_.insert(absl::c_upper_bound(waiting_, &sequence, ArrivedBefore), &sequence);
}

void SequenceTable::StopWaiting(SequenceState& sequence) {
  const auto it = absl::c_lower_bound(waiting_, &sequence, ArrivedBefore);
  CHECK(it != waiting_.end() && *it == &sequence) << "sequence " << sequence.id() << " waits";
  waiting_.erase(it);
}

void SequenceTable::Finish(SequenceState& sequence) {
  sequence.finished = true;
  --sequence.added->num_unfinished;
}

void SequenceTable::CheckInvariants() const {
  std::vector<bool> taken(by_slot_.size(), false);
  for (const SlotId slot : free_slots_) {
    CHECK(!taken[slot.value()]) << "1: slot " << slot << " is free twice";
    CHECK(by_slot_[slot.value()] == nullptr) << "1: slot " << slot << " is free and has an owner";
    taken[slot.value()] = true;
  }
  for (const SequenceState* sequence : running_) {
    CHECK(sequence->slot.has_value()) << "1: running sequence " << sequence->id() << " has no slot";
    CHECK(!taken[sequence->slot->value()]) << "1: slot " << *sequence->slot << " has two owners";
    CHECK(by_slot_[sequence->slot->value()] == sequence) << "1";
    CHECK(!sequence->finished) << "2";
    taken[sequence->slot->value()] = true;
  }
  CHECK_EQ(free_slots_.size() + running_.size(), by_slot_.size()) << "1";
  for (const SequenceState* sequence : waiting_) {
    CHECK(!sequence->slot.has_value() && sequence->admission == 0) << "1";
    CHECK(!sequence->finished) << "2";
  }
  CHECK(absl::c_is_sorted(running_, [](const SequenceState* a, const SequenceState* b) {
    return HasPriorityOver(a, b) || (!HasPriorityOver(b, a) && a->admission < b->admission);
  })) << "2";
  CHECK(absl::c_is_sorted(waiting_, ArrivedBefore)) << "2";
  int num_unfinished = 0;
  for (const auto& [id, request] : requests_) {
    CHECK(request->num_unfinished > 0 || request->num_open_rows > 0) << "3: request " << id;
    const auto is_unfinished = [](const SequenceState& sequence) { return !sequence.finished; };
    CHECK_EQ(request->num_unfinished, absl::c_count_if(request->sequences, is_unfinished))
        << "3: request " << id;
    num_unfinished += request->num_unfinished;
  }
  CHECK_EQ(num_unfinished, num_waiting() + num_running()) << "2";
}

}  // namespace reprise
