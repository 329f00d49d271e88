// A Fence for tests: it passes when the test says so.
//
//   FakeFence fence;
//   fence.Arm();
//   EXPECT_FALSE(fence.Passed());
//   fence.Pass();
//
// Thread safety: safe; Pass() on one thread ends Wait() on another.

#ifndef BASE_FAKE_FENCE_H_
#define BASE_FAKE_FENCE_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/fence.h"

namespace reprise {

class FakeFence : public Fence {
 public:
  void Arm() override {
    absl::MutexLock lock(&mutex_);
    armed_ = true;
    ++num_armings_;
  }

  bool Passed() override {
    absl::MutexLock lock(&mutex_);
    return !armed_;
  }

  void Wait() override {
    absl::MutexLock lock(&mutex_);
    ++num_waits_;
    mutex_.Await(absl::Condition(
        +[](bool* armed) { return !*armed; }, &armed_));
  }

  void Pass() {
    absl::MutexLock lock(&mutex_);
    armed_ = false;
  }

  int num_armings() const {
    absl::MutexLock lock(&mutex_);
    return num_armings_;
  }

  // Calls of Wait(), whether they had to block or not.
  int num_waits() const {
    absl::MutexLock lock(&mutex_);
    return num_waits_;
  }

 private:
  mutable absl::Mutex mutex_;
  bool armed_ ABSL_GUARDED_BY(mutex_) = false;
  int num_armings_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_waits_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace reprise

#endif  // BASE_FAKE_FENCE_H_
