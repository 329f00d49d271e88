#include "reprise/cache/prefix/prefix_events.h"

#include <glog/logging.h>

#include <utility>

namespace reprise {

PrefixEventQueue::PrefixEventQueue(int64_t capacity) : capacity_(capacity) {
  CHECK_GE(capacity, 0);
  pending_.reserve(capacity);
  taken_.reserve(capacity);
}

void PrefixEventQueue::Push(const PrefixEvent& event) {
  if (capacity_ == 0) return;
  if (static_cast<int64_t>(pending_.size()) < capacity_) {
    pending_.push_back(event);
  } else {
    ++num_lost_;
  }
}

PrefixEvents PrefixEventQueue::Take() {
  pending_.swap(taken_);
  pending_.clear();
  return {.events = taken_, .num_lost = std::exchange(num_lost_, 0)};
}

}  // namespace reprise
