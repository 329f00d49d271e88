// Adds the spans of a runner's steps, on the host and on the device, to a StepTrace. Without a
// trace, all calls do nothing.
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_TRACE_STEP_TRACER_H_
#define REPRISE_RUNNER_TRACE_STEP_TRACER_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/step_plan.h"
#include "reprise/runner/trace/device_spans.h"
#include "reprise/runner/trace/step_trace.h"

namespace reprise {

class StepTracer {
 public:
  // `trace` must outlive the tracer. Null: no trace. Errors: as DeviceDriver::MakeTimer().
  static absl::StatusOr<StepTracer> Create(StepTrace* trace, DeviceDriver& driver, int num_outputs);

  // Returns a host span that ends with its destruction. `name` must be a literal.
  StepTrace::Span Span(const char* name, int64_t step) const { return {trace_, name, step}; }

  // Adds the counts of a step, and begins its spans on the device. REQUIRES: the plan is complete.
  void Begin(const StepPlan& plan);
  // Marks the end of `part` of the step on the device's stream.
  void End(const StepPlan& plan, DevicePart part);
  // Adds the device's spans of a step that has run.
  void Collect(const StepPlan& plan);

 private:
  explicit StepTracer(StepTrace* trace) : trace_(trace) {}

  StepTrace* trace_;
  std::optional<DeviceSpans> device_spans_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TRACE_STEP_TRACER_H_
