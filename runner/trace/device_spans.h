// When the device did the parts of each step, as spans of a StepTrace.
//
//   DeviceSpans spans(&trace, timer, /*num_outputs=*/3);   // timer: DeviceSpans::NumMarks(3) marks
//   spans.Begin(output);                                   // the step is launched
//   ... refill ...
//   spans.End(output, DevicePart::kRefill);
//   ... forward pass ...
//   spans.End(output, DevicePart::kForward);
//   ... the step is awaited ...
//   spans.Collect(output, step, decision);
//
// A part begins where the one before it ended. A part that a step lacks has no End(). Times are read
// when the step was awaited, so nothing waits for the device.
//
// The device's clock is not the host's. A step is put as long after the one before it as the device
// says, and moved so that it neither begins before its launch nor ends after the host saw its end.
//
// Thread safety: none; one owner. Begin(), End() and Collect() allocate nothing.

#ifndef REPRISE_RUNNER_TRACE_DEVICE_SPANS_H_
#define REPRISE_RUNNER_TRACE_DEVICE_SPANS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "reprise/graphs/graph_key.h"
#include "reprise/runner/device/device_timer.h"
#include "reprise/runner/trace/step_trace.h"

namespace reprise {

// In the order in which a step has them.
enum class DevicePart : int8_t { kRefill, kEncode, kForward, kSample };

class DeviceSpans {
 public:
  static constexpr int kNumParts = 4;
  // Those of a timer for so many steps.
  static constexpr int NumMarks(int num_outputs) { return num_outputs * (1 + kNumParts); }

  // `num_outputs`: at least one more than steps may be in flight. The trace must outlive it.
  DeviceSpans(StepTrace* trace, std::unique_ptr<DeviceTimer> timer, int num_outputs);

  // REQUIRES: `output`, in [0, num_outputs), is that of no step in flight.
  void Begin(int output);
  void End(int output, DevicePart part);

  // Adds the step's spans. One whose times the device does not give is left out.
  // REQUIRES: the device has done the step; steps are collected in the order of their launch.
  void Collect(int output, int64_t step, const GraphDecision& decision);

 private:
  struct Step {
    int64_t launched_ns = 0;
    std::array<bool, kNumParts> has_part = {};
  };

  int MarkOf(int output, int part) const { return output * (1 + kNumParts) + 1 + part; }
  // The last mark that was set.
  int LastMarkOf(int output) const;

  StepTrace* trace_;
  std::unique_ptr<DeviceTimer> timer_;
  std::vector<Step> steps_;  // by output
  int last_mark_ = -1;       // of the step that was collected last; -1: none
  int64_t last_ns_ = 0;      // of that mark, in the trace
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TRACE_DEVICE_SPANS_H_
