#include "distributed/peer_watch.h"

#ifdef REPRISE_WITH_C10D

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"

namespace reprise {

PeerWatch::PeerWatch(Peers* peers, const PeerWatchOptions& options,
                     std::function<void(const absl::Status&)> release)
    : peers_(*peers), options_(options), release_(std::move(release)), thread_([this] { Run(); }) {}

PeerWatch::~PeerWatch() {
  {
    const absl::MutexLock lock(&mutex_);
    stops_ = true;
  }
  thread_.join();
  if (status().ok()) peers_.Leave();
}

absl::Status PeerWatch::status() const {
  if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  const absl::MutexLock lock(&mutex_);
  return failure_;
}

void PeerWatch::Fail(const absl::Status& why) {
  const absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return;
  failure_ = why;
  failed_.store(true, std::memory_order_release);
}

absl::Status PeerWatch::Await(absl::FunctionRef<absl::Status()> wait,
                              std::optional<absl::Duration> limit) {
  absl::Time outer;
  {
    const absl::MutexLock lock(&mutex_);
    outer = std::exchange(deadline_, absl::Now() + limit.value_or(options_.timeout));
  }
  const absl::Cleanup restore = [&] {
    const absl::MutexLock lock(&mutex_);
    deadline_ = outer;
  };
  const absl::Status result = wait();
  const absl::Status failure = status();
  return failure.ok() ? result : failure;
}

absl::Status PeerWatch::Look() {
  bool late = false;
  {
    const absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    late = absl::Now() >= deadline_;
  }
  if (late) return peers_.Explain("device work", "it did not end in time");
  return peers_.Lost();
}

void PeerWatch::Run() {
  while (true) {
    {
      const absl::MutexLock lock(&mutex_);
      const auto ends = [this]()
                            ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stops_ || !failure_.ok(); };
      mutex_.AwaitWithTimeout(absl::Condition(&ends), options_.poll);
      if (stops_ && failure_.ok()) return;
    }
    const absl::Status failure = Look();
    if (failure.ok()) continue;
    Fail(failure);
    release_(failure);
    return;
  }
}

}  // namespace reprise

#endif  // REPRISE_WITH_C10D
