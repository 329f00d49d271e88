// Runs a call that may never return, such as a wait for a peer without a timeout.
//
//   const std::optional<Opened> opened =
//       CallWithin<Opened>(absl::Seconds(60), [address] { return Open(address); });
//
// Private to the folder.

#ifndef REPRISE_DISTRIBUTED_TIMED_CALL_H_
#define REPRISE_DISTRIBUTED_TIMED_CALL_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/time/time.h"

namespace reprise {

// Returns the result of `call`, or nullopt if `call` has not returned within `limit`. `call` runs
// on a separate thread that is detached, so `call` must own everything that it uses. A late result
// is destroyed on that thread. REQUIRES: `call` does not throw.
template <typename Result>
std::optional<Result> CallWithin(absl::Duration limit, std::function<Result()> call) {
  struct Shared {
    std::mutex mutex;  // protects `result`
    std::condition_variable ended;
    std::optional<Result> result;
  };
  const auto shared = std::make_shared<Shared>();
  std::thread([shared, call = std::move(call)] {
    Result result = call();
    const std::lock_guard<std::mutex> lock(shared->mutex);
    shared->result = std::move(result);
    shared->ended.notify_all();
  }).detach();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->ended.wait_for(lock, absl::ToChronoNanoseconds(limit),
                         [&] { return shared->result.has_value(); });
  return std::exchange(shared->result, std::nullopt);
}

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_TIMED_CALL_H_
