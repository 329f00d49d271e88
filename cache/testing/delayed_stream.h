// A stream for tests that runs its work when the test calls RunOldest(), and its fences.
//
//   DelayedStream stream;
//   stream.Submit([&] { copy(...); });
//   std::unique_ptr<Fence> fence = stream.MakeFence();
//   fence->Arm();
//   stream.RunOldest();     // runs the copy; fence->Passed() is now true
//
// Thread safety: not thread-safe. The stream must outlive its fences.

#ifndef REPRISE_CACHE_TESTING_DELAYED_STREAM_H_
#define REPRISE_CACHE_TESTING_DELAYED_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "reprise/base/fence.h"

namespace reprise {

class DelayedStream {
 public:
  void Submit(std::function<void()> work) {
    waiting_.push_back(std::move(work));
    ++num_submitted_;
  }

  bool empty() const { return waiting_.empty(); }

  // REQUIRES: !empty().
  void RunOldest() {
    waiting_.front()();
    waiting_.pop_front();
  }
  void RunAll() {
    while (!empty()) RunOldest();
  }

  std::unique_ptr<Fence> MakeFence() { return std::make_unique<StreamFence>(this); }

 private:
  class StreamFence : public Fence {
   public:
    explicit StreamFence(DelayedStream* stream) : stream_(stream) {}
    void Arm() override { position_ = stream_->num_submitted_; }
    bool Passed() override { return stream_->num_done() >= position_; }
    absl::Status Wait() override {
      while (!Passed()) stream_->RunOldest();
      return absl::OkStatus();
    }

   private:
    DelayedStream* stream_;
    int64_t position_ = 0;
  };

  int64_t num_done() const { return num_submitted_ - static_cast<int64_t>(waiting_.size()); }

  std::deque<std::function<void()>> waiting_;
  int64_t num_submitted_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_TESTING_DELAYED_STREAM_H_
