// Signals as something to wait for: SIGINT of a terminal, SIGTERM of a service manager.
//
//   SignalEvent stop({SIGINT, SIGTERM});        // until its destructor they end nothing
//   poll() on stop.descriptor(): readable once there was one
//   if (stop.Take()) ...                        // and it is as new
//
// Thread safety: one object at a time in a process; its methods from any thread.

#ifndef EXAMPLES_DECODE_SIGNAL_EVENT_H_
#define EXAMPLES_DECODE_SIGNAL_EVENT_H_

#include <signal.h>

#include <utility>
#include <vector>

namespace reprise {

class SignalEvent {
 public:
  explicit SignalEvent(const std::vector<int>& signals);
  ~SignalEvent();  // the signals do what they did before

  SignalEvent(const SignalEvent&) = delete;
  SignalEvent& operator=(const SignalEvent&) = delete;

  int descriptor() const { return descriptor_; }

  // Whether there was a signal since the last call.
  bool Take();

 private:
  int descriptor_;
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_SIGNAL_EVENT_H_
