// Device time of a piece of work: captured once, replayed many times between CUDA events.
//
//   REPRISE_ASSIGN_OR_RETURN(const Timing t, TimeReplays([&] { return work(); }, {}));
//   t.median_us, t.spread()
//
// Replays exclude launches and host time from the measurement. The work must keep caches cold
// itself: give it buffers larger than the L2, or rotate among several within one call.

#ifndef TESTS_BENCHMARKS_DEVICE_REPLAY_TIMER_H_
#define TESTS_BENCHMARKS_DEVICE_REPLAY_TIMER_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

struct ReplayTimerOptions {
  int num_warmups = 3;
  int num_samples = 15;
  int replays_per_sample = 3;
};

struct Timing {
  double median_us = 0;  // of one replay
  double min_us = 0;
  double max_us = 0;

  // (max - min) / median.
  double spread() const { return median_us > 0 ? (max_us - min_us) / median_us : 0; }
};

// `work` enqueues on LibTorch's current stream. It is called twice: as warm-up, and under capture
// on the timer's own stream. Errors: the work's; Internal if CUDA fails.
absl::StatusOr<Timing> TimeReplays(absl::FunctionRef<absl::Status()> work,
                                   const ReplayTimerOptions& options);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_REPLAY_TIMER_H_
