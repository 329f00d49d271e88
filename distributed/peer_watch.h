// A thread that detects failed ranks while other threads wait for work that only those ranks can
// complete, such as device work. Private to the folder.
//
//   PeerWatch watch(&peers, {.timeout = absl::Seconds(60)}, [&](const absl::Status& failure) {
//     ReleaseDeviceWork();
//   });
//   REPRISE_RETURN_IF_ERROR(watch.Await([&] { return AwaitDevice(); }, std::nullopt));
//
// Thread safety: any thread may call status() and Fail(). Only one thread may call Await().

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
  // Time limit of a wait without an explicit limit.
  absl::Duration timeout = absl::Seconds(60);
  // Interval between checks whether a rank has ended or called Fail().
  absl::Duration poll = absl::Milliseconds(200);
};

class PeerWatch {
 public:
  // `peers` must outlive the PeerWatch. `release` is called once, on the watch thread, after the
  // first failure. status() already returns the failure then.
  PeerWatch(Peers* peers, const PeerWatchOptions& options,
            std::function<void(const absl::Status&)> release);
  // If there was no failure, announces that this rank leaves without having failed
  // (Peers::Leave()).
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Runs `wait`. If `wait` takes longer than `limit`, the ranks that did not reach it have failed.
  // Returns status() if a rank has failed, and the result of `wait` otherwise. Calls may nest; the
  // inner limit applies.
  absl::Status Await(absl::FunctionRef<absl::Status()> wait, std::optional<absl::Duration> limit);

  // OK, or the first failure.
  absl::Status status() const;

  // Sets a failure that this rank has detected or reported by other means. REQUIRES: `why` is not
  // OK.
  void Fail(const absl::Status& why);

 private:
  void Run();
  // Checks the other ranks once. Returns OK or the failure of a rank.
  absl::Status Look();

  Peers& peers_;
  const PeerWatchOptions options_;
  const std::function<void(const absl::Status&)> release_;

  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;  // protects the next three members
  absl::Status failure_;
  absl::Time deadline_ = absl::InfiniteFuture();
  bool stops_ = false;
  std::condition_variable ended_;  // signalled if failure_ or stops_ changes
  std::thread thread_;
};

}  // namespace reprise

#endif  // REPRISE_WITH_C10D

#endif  // REPRISE_DISTRIBUTED_PEER_WATCH_H_
