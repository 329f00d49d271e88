// The sequences of a scheduler: requests by id, the order of waiting and running sequences, and the
// slots.
//
//   SequenceTable table(/*num_slots=*/256);
//   RequestState& added = table.Add(std::move(request_state));   // its sequences wait
//   table.Admit(*table.waiting()[0]);                            // it runs, in its own slot
//   table.Vacate(sequence);                                      // its slot is free
//   table.Wait(sequence);                                        // preempted; or Finish(sequence)
//
// Order. Waiting sequences are ordered by descending priority, then by order of arrival. Running
// sequences are ordered by descending priority, then by order of admission: the last one is
// preempted first.
//
// Invariants, checked by CheckInvariants():
//   1. Every running sequence has its own slot, and every other slot is free. Waiting and finished
//      sequences have no slot.
//   2. The lists are in the order above. They hold exactly the unfinished sequences.
//   3. Each request has unfinished sequences or open rows; it is forgotten otherwise.
//
// Thread safety: none; one owner. Ownership: the table owns the requests. A SequenceState stays
// valid until ForgetIfDone() forgets its request. Cost: O(sequences in the list) per change of a
// list, O(1) for the last one. Allocates per request only.

#ifndef REPRISE_ENGINE_SCHEDULING_SEQUENCE_TABLE_H_
#define REPRISE_ENGINE_SCHEDULING_SEQUENCE_TABLE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/engine/scheduling/sequence_state.h"

namespace reprise {

class SequenceTable {
 public:
  using Requests = absl::flat_hash_map<SequenceId, std::unique_ptr<RequestState>>;

  // REQUIRES: num_slots >= 1.
  explicit SequenceTable(int num_slots);

  // ---- Requests.

  // The id that the next Add() gives to its request.
  SequenceId next_id() const { return SequenceId(next_id_); }
  // Gives the request next_id(); its sequences wait. Sets RequestState::id and num_unfinished, and
  // SequenceState::added and sample.
  RequestState& Add(std::unique_ptr<RequestState> request);
  // Returns nullptr if the request was forgotten, or never added.
  RequestState* Find(SequenceId id) const;
  // Forgets the request if all its sequences have finished and it has no open rows. Invalidates the
  // request and its sequences then.
  void ForgetIfDone(const RequestState& request);
  const Requests& requests() const { return requests_; }

  // ---- Sequences.

  // Moves a waiting sequence to the running sequences, in the slot next_slot(), and numbers the
  // admission. REQUIRES: num_free_slots() > 0.
  void Admit(SequenceState& sequence);
  // Takes a running sequence out of its slot. It is in no list until Wait() or Finish().
  void Vacate(SequenceState& sequence);
  // Inserts a sequence that is in no list into the waiting sequences, in their order.
  void Wait(SequenceState& sequence);
  // Takes a waiting sequence out of the list, to Finish() it.
  void StopWaiting(SequenceState& sequence);
  // Marks a sequence that is in no list as finished.
  void Finish(SequenceState& sequence);

  const std::deque<SequenceState*>& waiting() const { return waiting_; }
  absl::Span<SequenceState* const> running() const { return running_; }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  int num_running() const { return static_cast<int>(running_.size()); }

  // ---- Slots.

  int num_free_slots() const { return static_cast<int>(free_slots_.size()); }
  // The slot of the next Admit(). REQUIRES: num_free_slots() > 0.
  SlotId next_slot() const { return free_slots_.back(); }
  // The running sequence in a slot; nullptr if the slot is free.
  const SequenceState* in_slot(SlotId slot) const { return by_slot_[slot.value()]; }

  void CheckInvariants() const;

 private:
  Requests requests_;
  std::deque<SequenceState*> waiting_;
  std::vector<SequenceState*> running_;
  std::vector<SequenceState*> by_slot_;
  std::vector<SlotId> free_slots_;
  int64_t next_id_ = 0;
  int64_t num_admissions_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SCHEDULING_SEQUENCE_TABLE_H_
