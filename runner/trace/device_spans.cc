#include "reprise/runner/trace/device_spans.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"

namespace reprise {
namespace {

const char* NameOf(int part) {
  switch (static_cast<DevicePart>(part)) {
    case DevicePart::kRefill:
      return "refill";
    case DevicePart::kEncode:
      return "encode";
    case DevicePart::kForward:
      return "forward";
    case DevicePart::kSample:
      return "sample";
  }
  return "unknown";
}

}  // namespace

DeviceSpans::DeviceSpans(StepTrace* trace, std::unique_ptr<DeviceTimer> timer, int num_outputs)
    : trace_(trace), timer_(std::move(timer)), steps_(num_outputs) {}

void DeviceSpans::Begin(int output) {
  steps_[output] = {.launched_ns = trace_->now_ns()};
  timer_->Mark(MarkOf(output, -1));
}

void DeviceSpans::End(int output, DevicePart part) {
  const int index = static_cast<int>(part);
  steps_[output].has_part[index] = true;
  timer_->Mark(MarkOf(output, index));
}

int DeviceSpans::LastMarkOf(int output) const {
  int last = -1;
  for (int part = 0; part < kNumParts; ++part) {
    if (steps_[output].has_part[part]) last = part;
  }
  return MarkOf(output, last);
}

void DeviceSpans::Collect(int output, int64_t step, const GraphDecision& decision) {
  const Step& launched = steps_[output];
  const int begin_mark = MarkOf(output, -1);
  const int end_mark = LastMarkOf(output);
  const absl::StatusOr<double> length = timer_->NsBetween(begin_mark, end_mark);
  if (!length.ok()) {
    last_mark_ = -1;
    return;
  }
  int64_t begin_ns = launched.launched_ns;
  if (last_mark_ >= 0) {
    const absl::StatusOr<double> pause = timer_->NsBetween(last_mark_, begin_mark);
    if (pause.ok()) {
      begin_ns = std::max(begin_ns, last_ns_ + static_cast<int64_t>(std::max(*pause, 0.0)));
    }
  }
  begin_ns = std::min(begin_ns, trace_->now_ns() - static_cast<int64_t>(*length));
  begin_ns = std::max(begin_ns, last_ns_);
  int64_t part_begin_ns = begin_ns;
  for (int part = 0; part < kNumParts; ++part) {
    if (!launched.has_part[part]) continue;
    const absl::StatusOr<double> end = timer_->NsBetween(begin_mark, MarkOf(output, part));
    if (!end.ok()) continue;
    const int64_t end_ns = std::max(begin_ns + static_cast<int64_t>(*end), part_begin_ns);
    const bool is_forward = part == static_cast<int>(DevicePart::kForward);
    trace_->AddDeviceSpan(NameOf(part), step, part_begin_ns, end_ns,
                          is_forward ? std::optional(decision) : std::nullopt);
    part_begin_ns = end_ns;
  }
  last_mark_ = end_mark;
  last_ns_ = part_begin_ns;
}

}  // namespace reprise
