// Records the time of each step, on the host and on the device, for chrome://tracing and Perfetto.
//
//   StepTrace trace(/*capacity=*/100'000);
//   auto runner = ModelRunner::Create(&model, {.debug = {.trace = &trace}});
//   ... steps ...
//   trace.WriteJson(file);
//
// A runner adds for each step that it launches:
//   launch                 ModelRunner::Launch(), which contains
//     plan                 the check of the batch, and the graph decision
//     refill               copies of blocks, and the delta to the slots
//     encode               the encoder's pass, if the step has one
//     replay or eager      the forward pass, with its key, and the reason if it is eager; "forward"
//                          if it failed
//     sample               the stages between logits and tokens, and sampling
//   await                  ModelRunner::Await(): the host waits for the step's tokens
//   rows, tokens           counters of live and of padded rows and tokens
// and on a track of the device, with the device's times (runner/trace/device_spans.h):
//   refill, encode, replay or eager, sample
//
// An Engine adds to the same trace:
//   engine                 one Step() of the engine, which contains
//     schedule             creation of the next batch; then the runner's launch
//     commit               after the runner's await: tokens are added to their sequences
//
// Callers may add their own spans on the same thread:
//
//   { StepTrace::Span span(trace, "schedule", step); ... }   // trace may be null
//
// On a GPU, the host's span of a replay only covers the launch.
//
// Keeps the newest `capacity` events. Adding events does not allocate. Thread safety: none; one
// owner, who writes the trace between steps.

#ifndef REPRISE_RUNNER_TRACE_STEP_TRACE_H_
#define REPRISE_RUNNER_TRACE_STEP_TRACE_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "reprise/graphs/graph_key.h"

namespace reprise {

class StepTrace {
 public:
  // REQUIRES: capacity >= 1.
  explicit StepTrace(int capacity = 100'000);

  // Adds a span that lasts from construction to destruction. `name` is not copied: pass a literal.
  class Span {
   public:
    // If `trace` is null, the object does nothing.
    Span(StepTrace* trace, const char* name, int64_t step)
        : trace_(trace),
          name_(name),
          step_(step),
          begin_ns_(trace != nullptr ? trace->now_ns() : 0) {}
    ~Span() {
      if (trace_ != nullptr) trace_->AddSpan(name_, step_, begin_ns_, decision_);
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

    // Sets how the step runs: the span is then named "replay" or "eager", with key and reason.
    void SetDecision(const GraphDecision& decision) { decision_ = decision; }

   private:
    StepTrace* trace_;
    const char* name_;
    int64_t step_;
    int64_t begin_ns_;
    std::optional<GraphDecision> decision_ = {};
  };

  // Adds a span to the track of the device. Times are values of now_ns(). `decision` as in
  // SetDecision().
  void AddDeviceSpan(const char* name, int64_t step, int64_t begin_ns, int64_t end_ns,
                     const std::optional<GraphDecision>& decision = std::nullopt);

  // Returns the nanoseconds since the trace was created.
  int64_t now_ns() const;

  // Adds the live counts of a step and its padded sizes.
  void AddCounts(const StepShape& shape, const GraphKey& padded);

  int64_t num_events() const;   // events that are kept
  int64_t num_dropped() const;  // older events that were overwritten

  // {"traceEvents": [...]}: spans of thread 1 (the host) and thread 2 (the device) and counters,
  // sorted by time. Outer spans precede inner spans. Times are microseconds since the trace was
  // created.
  void WriteJson(std::ostream& out) const;
  std::string ToJson() const;

 private:
  struct Event {
    const char* name = nullptr;  // null: counts
    bool is_of_device = false;
    int64_t step = 0;
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
    std::optional<GraphDecision> decision = {};
    StepShape shape = {};  // for counts
    GraphKey padded = {};
  };

  void AddSpan(const char* name, int64_t step, int64_t begin_ns,
               const std::optional<GraphDecision>& decision);
  void Add(const Event& event);
  static void WriteEvent(const Event& event, std::ostream& out);

  std::chrono::steady_clock::time_point origin_;
  std::vector<Event> events_;  // a ring
  int64_t num_added_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TRACE_STEP_TRACE_H_
