#include "reprise/runner/trace/step_tracer.h"

#include <memory>
#include <utility>

#include "reprise/base/status_macros.h"

namespace reprise {

absl::StatusOr<StepTracer> StepTracer::Create(StepTrace* trace, DeviceDriver& driver,
                                              int num_outputs) {
  StepTracer tracer(trace);
  if (trace == nullptr) return tracer;
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceTimer> timer,
                           driver.MakeTimer(DeviceSpans::NumMarks(num_outputs)));
  tracer.device_spans_.emplace(trace, std::move(timer), num_outputs);
  return tracer;
}

void StepTracer::Begin(const StepPlan& plan) {
  if (trace_ == nullptr) return;
  trace_->AddCounts(plan.shape, plan.decision.key);
  device_spans_->Begin(plan.output);
}

void StepTracer::End(const StepPlan& plan, DevicePart part) {
  if (trace_ != nullptr) device_spans_->End(plan.output, part);
}

void StepTracer::Collect(const StepPlan& plan) {
  if (trace_ != nullptr) device_spans_->Collect(plan.output, plan.step, plan.decision);
}

}  // namespace reprise
