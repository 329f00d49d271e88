#include "reprise/runner/trace/step_trace.h"

#include <glog/logging.h>

#include <algorithm>
#include <sstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace reprise {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

std::string Microseconds(int64_t nanoseconds) {
  return absl::StrFormat("%d.%03d", nanoseconds / 1000, nanoseconds % 1000);
}

// Returns the "args" of an event. Names of keys and reasons need no JSON escapes.
std::string Arguments(int64_t step, const std::optional<GraphDecision>& decision) {
  std::string args = absl::StrCat("\"step\": ", step);
  if (!decision.has_value()) return args;
  absl::StrAppend(&args, ", \"key\": \"", ToString(decision->key), "\"");
  if (decision->kind == GraphDecision::Kind::kEager) {
    absl::StrAppend(&args, ", \"reason\": \"", View(EagerReasonName(decision->reason)), "\"");
  }
  return args;
}

}  // namespace

StepTrace::StepTrace(int capacity) : origin_(std::chrono::steady_clock::now()) {
  CHECK_GE(capacity, 1);
  events_.resize(capacity);
}

int64_t StepTrace::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                              origin_)
      .count();
}

void StepTrace::Add(const Event& event) {
  events_[num_added_++ % static_cast<int64_t>(events_.size())] = event;
}

void StepTrace::AddSpan(const char* name, int64_t step, int64_t begin_ns,
                        const std::optional<GraphDecision>& decision) {
  Add({.name = name, .step = step, .begin_ns = begin_ns, .end_ns = now_ns(), .decision = decision});
}

void StepTrace::AddDeviceSpan(const char* name, int64_t step, int64_t begin_ns, int64_t end_ns,
                              const std::optional<GraphDecision>& decision) {
  Add({.name = name,
       .is_of_device = true,
       .step = step,
       .begin_ns = begin_ns,
       .end_ns = end_ns,
       .decision = decision});
}

void StepTrace::AddCounts(const StepShape& shape, const GraphKey& padded) {
  const int64_t now = now_ns();
  Add({.begin_ns = now, .end_ns = now, .shape = shape, .padded = padded});
}

int64_t StepTrace::num_events() const {
  return std::min(num_added_, static_cast<int64_t>(events_.size()));
}

int64_t StepTrace::num_dropped() const { return num_added_ - num_events(); }

void StepTrace::WriteEvent(const Event& event, std::ostream& out) {
  const std::string at = absl::StrCat("\"ts\": ", Microseconds(event.begin_ns), ", \"pid\": 1");
  if (event.name == nullptr) {
    const auto counter = [&](const char* name, int live, int padded) {
      out << "{\"ph\": \"C\", \"name\": \"" << name << "\", " << at
          << ", \"args\": {\"live\": " << live << ", \"padding\": " << std::max(padded - live, 0)
          << "}}";
    };
    counter("rows", event.shape.num_seqs, event.padded.padded_num_seqs);
    out << ",\n";
    counter("tokens", event.shape.num_tokens, event.padded.padded_num_tokens);
    return;
  }
  const char* name = event.name;
  if (event.decision.has_value()) {
    name = event.decision->kind == GraphDecision::Kind::kReplay ? "replay" : "eager";
  }
  out << "{\"ph\": \"X\", \"name\": \"" << name << "\", " << at
      << ", \"tid\": " << (event.is_of_device ? 2 : 1)
      << ", \"dur\": " << Microseconds(event.end_ns - event.begin_ns) << ", \"args\": {"
      << Arguments(event.step, event.decision) << "}}";
}

void StepTrace::WriteJson(std::ostream& out) const {
  // A span is added when it ends, so inner spans precede the span that contains them.
  std::vector<const Event*> events;
  for (int64_t i = num_dropped(); i < num_added_; ++i) {
    events.push_back(&events_[i % static_cast<int64_t>(events_.size())]);
  }
  std::stable_sort(events.begin(), events.end(), [](const Event* a, const Event* b) {
    return std::make_tuple(a->begin_ns, -a->end_ns) < std::make_tuple(b->begin_ns, -b->end_ns);
  });
  out << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
      << "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 1, \"args\": {\"name\": \"steps\"}}";
  const char* const names[] = {"host", "device"};
  for (int i = 0; i < 2; ++i) {
    out << ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": " << i + 1
        << ", \"args\": {\"name\": \"" << names[i] << "\"}}";
  }
  for (const Event* event : events) {
    out << ",\n";
    WriteEvent(*event, out);
  }
  out << "\n]}\n";
}

std::string StepTrace::ToJson() const {
  std::ostringstream json;
  WriteJson(json);
  return json.str();
}

}  // namespace reprise
