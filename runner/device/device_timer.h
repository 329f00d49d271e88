// Measures when a device did its work, by marks in a stream.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceTimer> timer, driver.MakeTimer(2));
//   timer->Mark(0);
//   ... work is enqueued ...
//   timer->Mark(1);
//   ... wait for the work, for example with a fence ...
//   REPRISE_ASSIGN_OR_RETURN(const double ns, timer->NsBetween(0, 1));
//
// A mark is a CUDA event, or the current time on the CPU, where calls are synchronous. No method
// waits for the device or allocates.
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_DEVICE_DEVICE_TIMER_H_
#define REPRISE_RUNNER_DEVICE_DEVICE_TIMER_H_

#include "absl/status/statusor.h"

namespace reprise {

class DeviceTimer {
 public:
  virtual ~DeviceTimer() = default;

  // Sets the mark after all work that has been enqueued so far, and replaces its previous position.
  // If this call fails, NsBetween() treats the mark as never set. REQUIRES: mark is in [0,
  // num_marks).
  virtual void Mark(int mark) = 0;

  // Returns the time between two marks in nanoseconds of the device's clock. REQUIRES: both are in
  // [0, num_marks). Errors: FailedPrecondition if a mark is not set, or if the device has not
  // reached it; Internal if CUDA fails.
  virtual absl::StatusOr<double> NsBetween(int from, int to) = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DEVICE_DEVICE_TIMER_H_
