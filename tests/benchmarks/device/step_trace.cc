#include "tests/benchmarks/device/step_trace.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace reprise {

absl::StatusOr<StepParts> SplitSteps(const DeviceTrace& trace) {
  std::vector<size_t> begins;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    if (ClassOfKernel(trace.events[i].name) == KernelClass::kRefill) begins.push_back(i);
  }
  if (begins.size() < 3) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the trace must hold at least 3 steps, each with a refill: got ", begins.size()));
  }
  const double num_steps = static_cast<double>(begins.size() - 1);
  StepParts parts;
  for (size_t step = 0; step + 1 < begins.size(); ++step) {
    double busy_until = trace.events[begins[step]].start_us;
    for (size_t i = begins[step]; i < begins[step + 1]; ++i) {
      const DeviceEvent& event = trace.events[i];
      const KernelClass kernel_class = ClassOfKernel(event.name);
      parts.class_us[static_cast<int>(kernel_class)] += event.duration_us / num_steps;
      if (kernel_class == KernelClass::kOther) {
        parts.other_us[event.name] += event.duration_us / num_steps;
      }
      (event.kind == DeviceEvent::Kind::kKernel ? parts.kernels : parts.copies) += 1 / num_steps;
      parts.gap_within_us += std::max(0.0, event.start_us - busy_until) / num_steps;
      busy_until = std::max(busy_until, event.start_us + event.duration_us);
    }
    const double next = trace.events[begins[step + 1]].start_us;
    parts.gap_between_us += std::max(0.0, next - busy_until) / num_steps;
    parts.step_us += (next - trace.events[begins[step]].start_us) / num_steps;
  }
  for (const auto& [name, count] : trace.runtime_calls) {
    parts.calls[name] = count / static_cast<double>(begins.size());
  }
  for (const auto& [name, us] : trace.runtime_us) {
    parts.calls_us[name] = us / static_cast<double>(begins.size());
  }
  return parts;
}

}  // namespace reprise
