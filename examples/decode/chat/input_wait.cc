#include "examples/decode/chat/input_wait.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/time/clock.h"

namespace reprise {

InputWait::InputWait(int descriptor, SignalEvent& interrupt, IdleCall idle)
    : descriptor_(descriptor),
      interrupt_(interrupt),
      idle_(std::move(idle)),
      due_(idle_.call ? absl::Now() + idle_.interval : absl::InfiniteFuture()) {}

void InputWait::CallIfDue() {
  if (absl::Now() < due_) return;
  status_ = idle_.call();
  due_ = absl::Now() + idle_.interval;
}

InputWait::Event InputWait::Next() {
  while (status_.ok()) {
    std::array<pollfd, 2> waited = {
        {{.fd = interrupt_.descriptor(), .events = POLLIN, .revents = 0},
         {.fd = descriptor_, .events = POLLIN, .revents = 0}}};
    int limit_ms = -1;
    if (due_ != absl::InfiniteFuture()) {
      // Rounded up, so that the call is due when the wait has ended.
      const absl::Duration left = absl::Ceil(due_ - absl::Now(), absl::Milliseconds(1));
      limit_ms = static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 0,
                                                      absl::Hours(1) / absl::Milliseconds(1)));
    }
    const int num_ready = poll(waited.data(), waited.size(), limit_ms);
    if (num_ready < 0 && errno != EINTR) return Event::kFailed;
    if (interrupt_.Take()) return Event::kInterrupted;
    CallIfDue();
    if (status_.ok() && num_ready > 0 && waited[1].revents != 0) return Event::kInput;
  }
  return Event::kFailed;
}

}  // namespace reprise
