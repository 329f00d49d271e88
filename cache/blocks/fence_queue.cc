#include "reprise/cache/blocks/fence_queue.h"

#include <glog/logging.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace reprise {

absl::StatusOr<FenceQueue> FenceQueue::Create(std::vector<std::unique_ptr<Fence>> fences) {
  if (fences.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("fences must be at least 2, got ", fences.size()));
  }
  std::vector<ArmedFence> armed(fences.size());
  for (size_t i = 0; i < fences.size(); ++i) {
    if (fences[i] == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("fences[", i, "] must not be null"));
    }
    armed[i].fence = std::move(fences[i]);
  }
  return FenceQueue(std::move(armed));
}

int64_t FenceQueue::Arm() {
  Poll();
  const int num_fences = static_cast<int>(fences_.size());
  if (num_waiting_ < num_fences) ++num_waiting_;
  ArmedFence& newest = fences_[(oldest_ + num_waiting_ - 1) % num_fences];
  newest.fence->Arm();
  newest.ticket = ++last_armed_;
  return last_armed_;
}

int64_t FenceQueue::Poll() {
  while (num_waiting_ > 0 && fences_[oldest_].fence->Passed()) PopOldest();
  return last_passed_;
}

void FenceQueue::Wait(int64_t ticket) {
  CHECK_LE(ticket, last_armed_) << "Wait for a ticket that was never given";
  while (last_passed_ < ticket) {
    // A consumer that has failed uses nothing more.
    fences_[oldest_].fence->Wait().IgnoreError();
    PopOldest();
  }
}

void FenceQueue::PopOldest() {
  last_passed_ = fences_[oldest_].ticket;
  oldest_ = (oldest_ + 1) % static_cast<int>(fences_.size());
  --num_waiting_;
}

}  // namespace reprise
