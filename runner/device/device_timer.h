// When a device did its work: marks in a stream, and the times between them.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceTimer> timer, driver.MakeTimer(/*num_marks=*/2));
//   timer->Mark(0);
//   ... work is enqueued ...
//   timer->Mark(1);
//   ... the work is awaited, by a fence for example ...
//   REPRISE_ASSIGN_OR_RETURN(const double ns, timer->NsBetween(0, 1));
//
// A mark is an event of the stream, or on the CPU, where work is done when a call returns, a look at
// the clock. No method waits for the device or allocates.
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_DEVICE_DEVICE_TIMER_H_
#define REPRISE_RUNNER_DEVICE_DEVICE_TIMER_H_

#include "absl/status/statusor.h"

namespace reprise {

class DeviceTimer {
 public:
  virtual ~DeviceTimer() = default;

  // Sets the mark behind all work enqueued so far; where it was is forgotten. What fails here shows
  // in NsBetween(). REQUIRES: mark is in [0, num_marks).
  virtual void Mark(int mark) = 0;

  // Nanoseconds of the device between two marks. REQUIRES: both are in [0, num_marks). Errors:
  // FailedPrecondition if one was never set, or if the device has not reached it; Internal for what
  // CUDA says.
  virtual absl::StatusOr<double> NsBetween(int from, int to) = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DEVICE_DEVICE_TIMER_H_
