// A thread that notices failed ranks while other threads wait for something that only those ranks
// could end, such as device work. Private to the folder.
//
//   PeerWatch watch(&peers, {.timeout = absl::Seconds(60)}, [&](const absl::Status& failure) {
//     ReleaseDeviceWork();
//   });
//   REPRISE_RETURN_IF_ERROR(watch.Await([&] { return AwaitDevice(); }, std::nullopt));
//
// Thread safety: status() and Fail() may be called by any thread, Await() by one.

#ifndef REPRISE_DISTRIBUTED_PEER_WATCH_H_
#define REPRISE_DISTRIBUTED_PEER_WATCH_H_

#ifdef REPRISE_WITH_C10D

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "reprise/distributed/peers.h"

namespace reprise {

struct PeerWatchOptions {
  // Of a wait that gives no limit of its own.
  absl::Duration timeout = absl::Seconds(60);
  // How often it is looked whether ranks have ended or given up.
  absl::Duration poll = absl::Milliseconds(200);
};

class PeerWatch {
 public:
  // `peers` must outlive it. `release` is called once, on the thread of the watch, after the first
  // failure, when status() gives it already.
  PeerWatch(Peers* peers, const PeerWatchOptions& options,
            std::function<void(const absl::Status&)> release);
  // Tells the other ranks that this one leaves and has not failed, unless it has (Peers::Leave()).
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Runs `wait`. If it takes longer than `limit`, the ranks that did not come have failed. Returns
  // status() if a rank has failed by its end, else its result. Calls may nest; the inner limit
  // counts.
  absl::Status Await(absl::FunctionRef<absl::Status()> wait, std::optional<absl::Duration> limit);

  // OK, or the first failure.
  absl::Status status() const;

  // A failure that this rank has found or told of by other means. REQUIRES: `why` is not OK.
  void Fail(const absl::Status& why);

 private:
  void Run();
  // OK, or the failure of a rank that has come to light.
  absl::Status Look();

  Peers& peers_;
  const PeerWatchOptions options_;
  const std::function<void(const absl::Status&)> release_;

  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;  // of the three below
  absl::Status failure_;
  absl::Time deadline_ = absl::InfiniteFuture();
  bool stops_ = false;
  std::condition_variable ended_;  // failure_ or stops_ has changed
  std::thread thread_;
};

}  // namespace reprise

#endif  // REPRISE_WITH_C10D

#endif  // REPRISE_DISTRIBUTED_PEER_WATCH_H_
