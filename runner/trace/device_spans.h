// Records when the device ran each part of a step, as spans of a StepTrace.
//
//   DeviceSpans spans(&trace, timer, /*num_outputs=*/3);   // timer: DeviceSpans::NumMarks(3) marks
//   spans.Begin(output);                                   // when the step is launched
//   ... refill ...
//   spans.End(output, DevicePart::kRefill);
//   ... forward pass ...
//   spans.End(output, DevicePart::kForward);
//   ... wait for the step ...
//   spans.Collect(output, step, decision);
//
// A part begins when the previous part ends. If a step lacks a part, End() is not called for it.
// Times are read after the step was awaited, so no call waits for the device.
//
// The clocks of the device and the host differ. Steps keep the relative times of the device. Each
// step is shifted to begin after its launch and after the previous step, and to end before its
// completion on the host's clock as far as this permits.
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

// In the order in which a step runs them.
enum class DevicePart : int8_t { kRefill, kEncode, kForward, kSample };

class DeviceSpans {
 public:
  static constexpr int kNumParts = 4;
  // Returns the number of timer marks needed for `num_outputs` steps.
  static constexpr int NumMarks(int num_outputs) { return num_outputs * (1 + kNumParts); }

  // `num_outputs`: at least one more than the maximum number of steps in flight. The trace must
  // outlive this object.
  DeviceSpans(StepTrace* trace, std::unique_ptr<DeviceTimer> timer, int num_outputs);

  // REQUIRES: `output` is in [0, num_outputs), and no step in flight uses it.
  void Begin(int output);
  void End(int output, DevicePart part);

  // Adds the step's spans; adds no spans if the device does not report their times. REQUIRES: the
  // step has run; steps are collected in the order of their launch.
  void Collect(int output, int64_t step, const GraphDecision& decision);

 private:
  struct Step {
    int64_t launched_ns = 0;
    std::array<bool, kNumParts> has_part = {};
  };

  int MarkOf(int output, int part) const { return output * (1 + kNumParts) + 1 + part; }
  // Returns the last mark that was set.
  int LastMarkOf(int output) const;

  StepTrace* trace_;
  std::unique_ptr<DeviceTimer> timer_;
  std::vector<Step> steps_;  // by output
  int last_mark_ = -1;       // last mark of the step that was collected last; -1: none
  int64_t last_ns_ = 0;      // time of this mark in the trace
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TRACE_DEVICE_SPANS_H_
