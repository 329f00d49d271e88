#include "reprise/base/staging_ring.h"

#include <glog/logging.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {

StagingSlot& StagingSlot::operator=(StagingSlot&& other) noexcept {
  if (this != &other) {
    Submit();
    state_ = std::exchange(other.state_, nullptr);
    bytes_ = std::exchange(other.bytes_, {});
    offset_bytes_ = other.offset_bytes_;
  }
  return *this;
}

void StagingSlot::Submit() {
  if (state_ == nullptr) return;
  state_->fence->Arm();
  state_->held = false;
  state_ = nullptr;
  bytes_ = {};
}

absl::StatusOr<StagingRing> StagingRing::Create(absl::Span<std::byte> memory,
                                                std::vector<std::unique_ptr<Fence>> fences) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("fences", static_cast<int64_t>(fences.size()), 1));
  if (memory.empty() || memory.size() % fences.size() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory must be slots of equal size: expected a positive multiple of ",
                     fences.size(), " bytes, got ", memory.size()));
  }
  std::vector<StagingSlot::State> states(fences.size());
  for (size_t i = 0; i < fences.size(); ++i) {
    if (fences[i] == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("fences must not be null: got null at ", i));
    }
    states[i].fence = std::move(fences[i]);
  }
  return StagingRing(memory, std::move(states));
}

StagingRing::StagingRing(absl::Span<std::byte> memory, std::vector<StagingSlot::State> states)
    : memory_(memory),
      states_(std::move(states)),
      slot_bytes_(static_cast<int64_t>(memory_.size() / states_.size())) {}

StagingSlot StagingRing::Acquire() {
  CHECK(!states_[next_].held) << "staging slot " << next_ << " is acquired before it is submitted";
  // Calls Passed() first: in the steady state this avoids the call of Wait(). A failed reader reads
  // nothing more, and the next submission of work reports the failure.
  if (!states_[next_].fence->Passed()) states_[next_].fence->Wait().IgnoreError();
  return TakeNext();
}

std::optional<StagingSlot> StagingRing::TryAcquire() {
  CHECK(!states_[next_].held) << "staging slot " << next_ << " is acquired before it is submitted";
  if (!states_[next_].fence->Passed()) return std::nullopt;
  return TakeNext();
}

StagingSlot StagingRing::TakeNext() {
  StagingSlot::State& state = states_[next_];
  state.held = true;
  const int64_t offset_bytes = next_ * slot_bytes_;
  next_ = (next_ + 1) % num_slots();
  return StagingSlot(&state, memory_.subspan(offset_bytes, slot_bytes_), offset_bytes);
}

}  // namespace reprise
