// BlockManagerModel: swaps with delayed copies.

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "reprise/cache/group_retention.h"
#include "reprise/cache/testing/block_manager_model.h"
#include "reprise/cache/testing/model_values.h"

namespace reprise {

namespace {

using absl::StatusCode;

}  // namespace

void BlockManagerModel::PlanOut() {
  call_ = "PlanOut";
  store_->Poll();  // as the call does: the counts below are those after it
  const SlotId slot = AnySlot();
  const std::vector<int64_t> before = Snapshot();
  const SequenceId id(next_id_++);
  const auto found = live_.find(slot);
  std::vector<StatusCode> codes;
  if (found == live_.end()) {
    const bool is_slot = slot.value() >= 0 && slot.value() < manager_->options().num_slots;
    codes = {is_slot ? StatusCode::kNotFound : StatusCode::kInvalidArgument};
  } else if (found->second.is_swapping_out || manager_->has_copies() || NumPlannedIn() > 0) {
    codes = {StatusCode::kFailedPrecondition};
  } else {
    const int64_t at_most = manager_->NumBlocksFor(found->second.num_committed, 0,
                                                   found->second.origin.num_encoder_tokens);
    codes = {StatusCode::kOk};
    if (at_most > store_->host_pool().num_allocatable()) {
      codes.push_back(StatusCode::kResourceExhausted);
      codes.push_back(StatusCode::kInvalidArgument);
    }
  }
  const absl::Status status = store_->PlanOut(slot, id);
  Expect(status, codes, before);
  if (!status.ok()) return;
  found->second.is_swapping_out = true;
  found->second.id = id;
  CHECK(store_->state(id) == SwapState::kPlanned);
}

void BlockManagerModel::PlanIn() {
  call_ = "PlanIn";
  if (stored_.empty()) return;
  store_->Poll();  // as the call does: the counts below are those after it
  const auto found = std::next(stored_.begin(), Below(static_cast<int>(stored_.size())));
  const SlotId slot = AnyEmptySlot();
  const std::vector<int64_t> before = Snapshot();
  std::vector<StatusCode> codes;
  if (!IsSlot(slot)) {
    codes = {StatusCode::kInvalidArgument};
  } else if (live_.contains(slot)) {
    codes = {StatusCode::kAlreadyExists};
  } else {
    codes = {StatusCode::kOk};
    const int64_t at_most = manager_->NumBlocksFor(found->second.num_committed, 0,
                                                   found->second.origin.num_encoder_tokens);
    if (at_most > manager_->pool().num_allocatable()) {
      codes.push_back(StatusCode::kResourceExhausted);
      codes.push_back(StatusCode::kInvalidArgument);
    }
  }
  const absl::Status status = store_->PlanIn(found->first, slot);
  Expect(status, codes, before);
  if (!status.ok()) return;
  live_[slot] = std::move(found->second);
  live_[slot].is_swapping_in = true;
  stored_.erase(found);
  CHECK_EQ(manager_->num_tokens(slot), live_[slot].num_committed);
  CHECK(store_->state(live_[slot].id) == SwapState::kSwappingIn);
  ++counts_["swaps in"];
}

void BlockManagerModel::Drop() {
  call_ = "Drop";
  if (stored_.empty()) return;
  const auto found = std::next(stored_.begin(), Below(static_cast<int>(stored_.size())));
  CHECK(store_->Drop(found->first).ok());
  CHECK(!store_->state(found->first).has_value());
  stored_.erase(found);
}

int BlockManagerModel::NumPlannedIn() const {
  return static_cast<int>(
      absl::c_count_if(live_, [](const auto& entry) { return entry.second.is_swapping_in; }));
}

// Submits the copies to the stream, which runs them later. Swapped-out blocks are read only then.
void BlockManagerModel::SubmitSwaps(int num_swaps_in) {
  const std::vector<BlockCopy> out(store_->copies_out().begin(), store_->copies_out().end());
  const std::vector<BlockCopy> in(store_->copies_in().begin(), store_->copies_in().end());
  // A swap-in waits for the steps before it, which have already completed in this memory.
  num_swaps_in_ += num_swaps_in;
  swap_stream_.Submit([this, out, in, num_swaps_in] {
    for (const BlockCopy& copy : out) {
      std::copy_n(&memory_[int64_t{copy.src} * block_size_], block_size_,
                  &host_memory_[int64_t{copy.dst} * block_size_]);
    }
    for (const BlockCopy& copy : in) {
      std::copy_n(&host_memory_[int64_t{copy.src} * block_size_], block_size_,
                  &memory_[int64_t{copy.dst} * block_size_]);
    }
    num_swaps_in_ -= num_swaps_in;
  });
}

void BlockManagerModel::LaunchSwaps() {
  call_ = "Launched";
  SubmitSwaps(NumPlannedIn());
  store_->Launched();
  std::vector<SlotId> leaving;
  for (auto& [slot, sequence] : live_) {
    sequence.is_swapping_in = false;
    if (sequence.is_swapping_out) leaving.push_back(slot);
  }
  for (const SlotId slot : leaving) {
    Sequence& sequence = live_[slot];
    CHECK(store_->state(sequence.id) == SwapState::kSwappingOut);
    CHECK_EQ(store_->num_tokens(sequence.id), sequence.num_committed);
    Store(slot);
    ++counts_["swaps out"];
  }
}

void BlockManagerModel::AbandonSwaps() {
  call_ = "Abandon";
  if (choices_->OneIn(2)) SubmitSwaps(0);  // its copies were launched
  store_->Abandon();
  std::vector<SlotId> arriving;
  for (auto& [slot, sequence] : live_) {
    counts_["swaps abandoned"] += sequence.is_swapping_out || sequence.is_swapping_in;
    sequence.is_swapping_out = false;
    if (sequence.is_swapping_in) arriving.push_back(slot);
  }
  for (const SlotId slot : arriving) {
    CHECK(!manager_->contains(slot)) << Where();
    Store(slot);
  }
}

// Moves the sequence from its slot to the stored sequences, with its committed tokens only.
void BlockManagerModel::Store(SlotId slot) {
  Sequence& sequence = live_[slot];
  sequence.is_swapping_out = false;
  sequence.is_swapping_in = false;
  sequence.tokens.resize(sequence.num_committed);
  sequence.values.resize(sequence.num_committed);
  sequence.num_written = sequence.num_committed;
  sequence.encoder_is_written = sequence.encoder_is_committed;
  stored_[sequence.id] = std::move(sequence);
  Leave(slot);
}

void BlockManagerModel::RunSwap() {
  call_ = "a swap passes";
  if (swap_stream_.empty()) return;
  swap_stream_.RunOldest();
  if (choices_->OneIn(2)) store_->Poll();
}

// A step that reads swapped-in content waits for the swap, but not for swaps that are only planned.
void BlockManagerModel::FinishSwapsIn() {
  if (NumPlannedIn() > 0 && choices_->OneIn(2)) LaunchSwaps();
  while (num_swaps_in_ > 0) swap_stream_.RunOldest();
}

}  // namespace reprise
