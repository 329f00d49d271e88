#include "reprise/cache/blocks/fence_queue.h"

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
  newest.event = ++last_armed_;
  return last_armed_;
}

int64_t FenceQueue::Poll() {
  while (num_waiting_ > 0 && fences_[oldest_].fence->Passed()) {
    last_passed_ = fences_[oldest_].event;
    oldest_ = (oldest_ + 1) % static_cast<int>(fences_.size());
    --num_waiting_;
  }
  return last_passed_;
}

}  // namespace reprise
