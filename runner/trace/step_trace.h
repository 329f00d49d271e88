// Where the time of each step goes, the host's and the device's, for chrome://tracing and Perfetto.
//
//   StepTrace trace(/*capacity=*/100'000);
//   auto runner = ModelRunner::Create(&model, {.trace = &trace});
//   ... steps ...
//   trace.WriteJson(file);
//
// A runner adds, for each step:
//   launch                 ModelRunner::Launch(), which contains
//     plan                 the batch is checked, and the graph decided
//     refill               copies of blocks, and the delta to the slots
//     encode               the encoder's pass; steps that have one
//     replay or eager      the forward pass, with its key, and the reason if it is eager; "forward"
//                          if it failed
//     sample               the stages between logits and tokens, and sampling
//   await                  ModelRunner::Await(): the host waits for the step's tokens
//   rows, tokens           counters, of live and of padded ones
// and, on a track of the device, when the device did it (runner/trace/device_spans.h):
//   refill, encode, replay or eager, sample
//
// An Engine adds to the same trace:
//   engine                 one Step() of it, which contains
//     schedule             the next batch is made; then the runner's launch
//     commit               after the runner's await: tokens reach their sequences
//
// Others may add their own, on the same thread:
//
//   { StepTrace::Span span(trace, "schedule", step); ... }   // trace may be null
//
// On a GPU a replay of the host is a launch.
//
// The newest `capacity` events are kept. Memory is allocated once; adding an event allocates
// nothing. Thread safety: none; one owner, who writes the trace between steps.

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

  // Adds a span from its construction to its destruction. `name` is not copied: a literal.
  class Span {
   public:
    // `trace` may be null: then nothing is done.
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

    // The step is run so: "replay" or "eager" instead of the name, with key and reason.
    void SetDecision(const GraphDecision& decision) { decision_ = decision; }

   private:
    StepTrace* trace_;
    const char* name_;
    int64_t step_;
    int64_t begin_ns_;
    std::optional<GraphDecision> decision_ = {};
  };

  // A span on the track of the device. Times are those of now_ns(). `decision` as with SetDecision().
  void AddDeviceSpan(const char* name, int64_t step, int64_t begin_ns, int64_t end_ns,
                     const std::optional<GraphDecision>& decision = std::nullopt);

  // Nanoseconds since the trace was made.
  int64_t now_ns() const;

  // The live counts of a step, and what they were padded to.
  void AddCounts(const StepShape& shape, const GraphKey& padded);

  int64_t num_events() const;   // kept
  int64_t num_dropped() const;  // older ones

  // {"traceEvents": [...]}: spans of thread 1, the host, and thread 2, the device, outer ones before
  // inner ones, and counters, by time. Times are microseconds since the trace was made.
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
    StepShape shape = {};  // of counts
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
