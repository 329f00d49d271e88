// Text generation over a StepRunner: requests in, tokens out, many sequences at once.
//
//   REPRISE_ASSIGN_OR_RETURN(auto engine, Engine::Create(std::move(runner), {}));
//   REPRISE_ASSIGN_OR_RETURN(SequenceId id, engine->Add({.prompt = {1, 2, 3}}));
//   std::vector<TokenEvent> events;
//   while (engine->has_work()) {
//     events.clear();
//     REPRISE_RETURN_IF_ERROR(engine->Step(events));
//     for (const TokenEvent& event : events) {
//       if (event.token.has_value()) ...   // event.sequence has a new token
//       if (event.finish == FinishReason::kError) ...   // event.error is the reason
//     }
//   }
//
// Joins a Scheduler, which chooses the sequences of a step, to a StepRunner, which computes it.
// CreateEngine() (engine/create_engine.h) makes both for a Model in one call. AsyncEngine
// (engine/async_engine.h) runs an engine on its own thread.
//
// Requests may be added and cancelled between steps. When a sequence ends, a waiting sequence can
// take its slot and blocks.
//
// Failures. A failed step and a row without a token end the sequences concerned, and a batch that
// the runner refuses ends all running sequences, with FinishReason::kError; TokenEvent::error gives
// the reason. The tokens of all other sequences do not change. A runner that can run no more steps
// ends all sequences. The engine does not propagate exceptions: if a callback of a request throws,
// its sequence ends (engine/request.h); if the runner throws, it has refused the batch or failed
// the step.
//
// Thread safety: not thread-safe; one owner. Host only, without LibTorch. A step does not allocate
// in the steady state.

#ifndef REPRISE_ENGINE_ENGINE_H_
#define REPRISE_ENGINE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/prefix/prefix_events.h"
#include "reprise/engine/engine_metrics.h"
#include "reprise/engine/request.h"
#include "reprise/engine/scheduler.h"
#include "reprise/runner/step_runner.h"
#include "reprise/runner/trace/step_trace.h"

namespace reprise {

struct EngineOptions {
  SchedulerPolicy scheduler = {};
  // The clock for deadlines and latencies. If a call throws, the engine uses the last time that it
  // returned.
  std::function<absl::Time()> clock = absl::Now;
  // Records the spans of the engine (runner/trace/step_trace.h). Must outlive the engine. Null: no
  // trace.
  StepTrace* trace = nullptr;
};

class Engine {
 public:
  // Errors: InvalidArgument naming the option; for more drafts than the runner verifies.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(std::unique_ptr<StepRunner> runner,
                                                        const EngineOptions& options = {});

  // The error that Create() would return.
  static absl::Status CheckOptions(const StepRunner& runner, const EngineOptions& options);

  // Queues a request. A failed call changes nothing. Errors: the errors of Scheduler::Add().
  // InvalidArgument for token ids outside the vocabulary, and for embeddings, penalties, biases,
  // stages or log-probabilities that the runner does not support. Unavailable, with the cause, if
  // the runner can run no more steps.
  absl::StatusOr<SequenceId> Add(Request request);

  // Ends the request's unfinished sequences: appends a kCancelled event for each of them, their
  // last event. Errors: NotFound if the request is unknown or all its sequences have ended.
  absl::Status Cancel(SequenceId id, std::vector<TokenEvent>& events);

  // Whether a sequence is unfinished or a step is in flight.
  bool has_work() const { return scheduler_->has_work(); }

  // Launches the next step. If max_steps_in_flight steps are in flight or no step can be launched,
  // waits for the tokens of the oldest step. Appends an event for each new token and for each
  // sequence that ended to `events`.
  // Errors: the reason why the runner can run no more steps; all sequences have then had their last
  // event. If a failure ends only some sequences, their events contain the error, and the result is
  // OK.
  absl::Status Step(std::vector<TokenEvent>& events);

  // Keeps the other ranks of a sharded model from timing out. Call it regularly while there is no
  // work, at intervals well below their timeout. Errors: the errors of StepRunner::Idle().
  absl::Status Idle();

  // Makes the prefix index forget all content: call it after the weights changed, between two calls
  // of Step(). Running sequences keep their keys.
  void ForgetPrefixes() { scheduler_->ForgetPrefixes(); }

  // Returns the prefixes that were cached or evicted since the last call, at most
  // SchedulerPolicy::num_prefix_events. For a router that sends requests to the process with their
  // prefix (cache/prefix/prefix_events.h). Valid until the next call.
  PrefixEvents TakePrefixEvents() { return scheduler_->TakePrefixEvents(); }

  EngineMetrics metrics() const;
  // Numbers of steps that replayed a graph, and of steps that ran eagerly, by reason.
  const GraphReport& graph_report() const { return runner_->graph_report(); }
  const Scheduler& scheduler() const { return *scheduler_; }
  const StepRunner& runner() const { return *runner_; }

 private:
  // The times at which the sequences of a request got their last token.
  struct Times {
    absl::Time added;
    std::vector<absl::Time> last_token;  // by sample; `added` before the first token
    int num_unfinished = 0;
    bool is_forced = false;  // the request has forced_tokens
  };
  struct LaunchedStep {
    int64_t step = 0;
    absl::Time launched;
  };

  Engine(std::unique_ptr<StepRunner> runner, std::unique_ptr<Scheduler> scheduler,
         const EngineOptions& options);
  absl::Time Now();  // reads clock_
  absl::Status RunStep(std::vector<TokenEvent>& events);
  // Launches the next step if possible. Returns whether it did.
  bool LaunchNext(std::vector<TokenEvent>& events);
  void AwaitOldest(std::vector<TokenEvent>& events);
  // Ends all sequences if the runner can run no more steps, and returns the reason.
  absl::Status CheckRunner(std::vector<TokenEvent>& events);
  void Count(absl::Span<const TokenEvent> events);

  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<Scheduler> scheduler_;
  std::function<absl::Time()> clock_;
  absl::Time now_ = absl::UnixEpoch();            // last value of clock_
  StepTrace* trace_;                              // null: none
  std::vector<LaunchedStep> in_flight_;           // oldest first
  bool measures_steps_ = false;                   // SpeculationPolicy::measures_steps
  absl::Time last_ended_ = absl::InfinitePast();  // end of the newest measured step
  absl::flat_hash_map<SequenceId, Times> times_;
  EngineMetrics counts_;  // counters that the scheduler and the runner do not have
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_ENGINE_H_
