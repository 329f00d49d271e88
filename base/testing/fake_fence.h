// A Fence for tests. It completes when the test calls Pass().
//
//   FakeFence fence;
//   fence.Arm();
//   EXPECT_FALSE(fence.Passed());
//   fence.Pass();
//
// Thread safety: thread-safe; Pass() on one thread ends Wait() on another.

#ifndef REPRISE_BASE_TESTING_FAKE_FENCE_H_
#define REPRISE_BASE_TESTING_FAKE_FENCE_H_

#include <condition_variable>
#include <mutex>

#include "absl/status/status.h"
#include "reprise/base/fence.h"

namespace reprise {

// Uses std::mutex, because ThreadSanitizer does not support the mutex of a system-wide Abseil.
class FakeFence : public Fence {
 public:
  void Arm() override {
    const std::lock_guard lock(mutex_);
    armed_ = true;
    ++num_armings_;
  }

  bool Passed() override {
    const std::lock_guard lock(mutex_);
    return !armed_;
  }

  absl::Status Wait() override {
    std::unique_lock lock(mutex_);
    ++num_waits_;
    passed_.wait(lock, [this] { return !armed_; });
    return absl::OkStatus();
  }

  void Pass() {
    const std::lock_guard lock(mutex_);
    armed_ = false;
    passed_.notify_all();  // under the lock, because the waiter may then destroy the fence
  }

  int num_armings() const {
    const std::lock_guard lock(mutex_);
    return num_armings_;
  }

  // Number of calls of Wait(), blocking or not.
  int num_waits() const {
    const std::lock_guard lock(mutex_);
    return num_waits_;
  }

 private:
  mutable std::mutex mutex_;  // guards all members below
  std::condition_variable passed_;
  bool armed_ = false;
  int num_armings_ = 0;
  int num_waits_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_BASE_TESTING_FAKE_FENCE_H_
