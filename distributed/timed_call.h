// A call that may never return, such as one that waits for a peer without a limit of its own.
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

// What `call` returns, or nullopt if it has not returned within `limit`. It runs on a thread of its
// own, which is then left alone: it must own all that it uses, and its late result is destroyed there.
// REQUIRES: `call` throws nothing.
template <typename Result>
std::optional<Result> CallWithin(absl::Duration limit, std::function<Result()> call) {
  struct Shared {
    std::mutex mutex;  // of `result`
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
