#include "reprise/distributed/peer_watch.h"

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
    const std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
  }
  ended_.notify_all();
  thread_.join();
  if (status().ok()) peers_.Leave();
}

absl::Status PeerWatch::status() const {
  if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void PeerWatch::Fail(const absl::Status& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return;
  failure_ = why;
  failed_.store(true, std::memory_order_release);
  ended_.notify_all();
}

absl::Status PeerWatch::Await(absl::FunctionRef<absl::Status()> wait,
                              std::optional<absl::Duration> limit) {
  absl::Time outer;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    outer = std::exchange(deadline_, absl::Now() + limit.value_or(options_.timeout));
  }
  const absl::Cleanup restore = [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    deadline_ = outer;
  };
  const absl::Status result = wait();
  const absl::Status failure = status();
  return failure.ok() ? result : failure;
}

absl::Status PeerWatch::Look() {
  bool late = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return failure_;
    late = absl::Now() >= deadline_;
  }
  if (late) return peers_.Explain(kDeviceWork, "it did not end in time");
  return peers_.Lost();
}

void PeerWatch::Run() {
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      ended_.wait_for(lock, absl::ToChronoNanoseconds(options_.poll),
                      [this] { return stops_ || !failure_.ok(); });
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
