#include "tests/benchmarks/device/step_trace.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace reprise {
namespace {

std::optional<KernelClass> ClassOf(absl::Span<const DeviceEvent> step, size_t i) {
  if (i >= step.size() || step[i].kind != DeviceEvent::Kind::kKernel) return std::nullopt;
  return ClassOfKernel(step[i].name);
}

// Which product of a layer, or the head: what comes before it decides, and for those behind a norm
// what comes after it. A product may be several kernels.
std::string_view PartOfProduct(absl::Span<const DeviceEvent> step, size_t i) {
  size_t first = i, after = i;
  while (first > 0 && ClassOf(step, first - 1) == KernelClass::kProducts) --first;
  while (ClassOf(step, after) == KernelClass::kProducts) ++after;
  // Of the first kernel it is none: beyond the last place.
  const std::optional<KernelClass> before = ClassOf(step, first - 1);
  const std::optional<KernelClass> next = ClassOf(step, after);
  if (next == KernelClass::kRotaryWrite) return "qkv";
  // A gated feed-forward whose activation is part of its first product.
  if (before == KernelClass::kNorm && after - first > 1 &&
      (next == KernelClass::kNorm || next == KernelClass::kCollectives)) {
    return i == first ? "gate_up" : "down";
  }
  if (next == KernelClass::kActivation) return "gate_up";
  if (before == KernelClass::kAttention) return "o";
  if (before == KernelClass::kActivation) return "down";
  if (before == KernelClass::kGather || before == KernelClass::kNorm) return "head";
  return KernelClassName(KernelClass::kProducts);
}

// "void reprise::(anonymous namespace)::TileLinearKernel<...>(...)" -> "TileLinearKernel"
std::string ShortName(std::string_view name) {
  constexpr std::string_view kAnonymous = "(anonymous namespace)::";
  const size_t anonymous = name.rfind(kAnonymous, name.find('<'));
  if (anonymous != std::string_view::npos) name.remove_prefix(anonymous + kAnonymous.size());
  name = name.substr(0, name.find_first_of("<("));
  const size_t space = name.rfind(' ');
  if (space != std::string_view::npos) name.remove_prefix(space + 1);
  const size_t scope = name.rfind("::");
  if (scope != std::string_view::npos) name.remove_prefix(scope + 2);
  return std::string(name);
}

// Adds a kernel's time to that of its part.
class KernelTable {
 public:
  void Add(std::string_view part, const DeviceEvent& event, double count, double us) {
    auto kernel = std::find_if(kernels_.begin(), kernels_.end(),
                               [&](const StepKernel& k) { return k.part == part; });
    if (kernel == kernels_.end()) {
      kernel = kernels_.emplace(kernels_.end());
      kernel->part = part;
      longest_us_.push_back(-1);
    }
    kernel->count += count;
    kernel->us += us;
    double& longest_us = longest_us_[kernel - kernels_.begin()];
    if (event.duration_us <= longest_us) return;
    longest_us = event.duration_us;
    kernel->name = ShortName(event.name);
  }
  std::vector<StepKernel> Take() && { return std::move(kernels_); }

 private:
  std::vector<StepKernel> kernels_;
  std::vector<double> longest_us_;
};

}  // namespace

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
  KernelTable table;
  for (size_t step = 0; step + 1 < begins.size(); ++step) {
    double busy_until = trace.events[begins[step]].start_us;
    const absl::Span<const DeviceEvent> events =
        absl::MakeConstSpan(trace.events).subspan(begins[step], begins[step + 1] - begins[step]);
    for (size_t i = begins[step]; i < begins[step + 1]; ++i) {
      const DeviceEvent& event = trace.events[i];
      const KernelClass kernel_class = ClassOfKernel(event.name);
      parts.class_us[static_cast<int>(kernel_class)] += event.duration_us / num_steps;
      if (kernel_class == KernelClass::kOther) {
        parts.other_us[event.name] += event.duration_us / num_steps;
      }
      (event.kind == DeviceEvent::Kind::kKernel ? parts.kernels : parts.copies) += 1 / num_steps;
      parts.gap_within_us += std::max(0.0, event.start_us - busy_until) / num_steps;
      const double end = event.start_us + event.duration_us;
      const double own_us = std::max(0.0, end - std::max(busy_until, event.start_us));
      table.Add(kernel_class == KernelClass::kProducts ? PartOfProduct(events, i - begins[step])
                                                       : KernelClassName(kernel_class),
                event, 1 / num_steps, own_us / num_steps);
      busy_until = std::max(busy_until, end);
    }
    const double next = trace.events[begins[step + 1]].start_us;
    parts.gap_between_us += std::max(0.0, next - busy_until) / num_steps;
    parts.step_us += (next - trace.events[begins[step]].start_us) / num_steps;
  }
  parts.by_kernel = std::move(table).Take();
  for (const auto& [name, count] : trace.runtime_calls) {
    parts.calls[name] = count / static_cast<double>(begins.size());
  }
  for (const auto& [name, us] : trace.runtime_us) {
    parts.calls_us[name] = us / static_cast<double>(begins.size());
  }
  return parts;
}

}  // namespace reprise
