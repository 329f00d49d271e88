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
//       if (event.finish == FinishReason::kError) ...   // it has ended: event.error says why
//     }
//   }
//
// Joins a Scheduler, which chooses the sequences of a step, to a StepRunner, which computes it.
// CreateEngine() (engine/create_engine.h) makes both for a Model in one call. AsyncEngine
// (engine/async_engine.h) runs an engine on its own thread.
//
// Requests may be added and cancelled between steps. A sequence that ends makes room for one that
// waits.
//
// Failures. A failed step, a row without a token and a batch that the runner refuses end the
// sequences concerned with FinishReason::kError; TokenEvent::error gives the reason. All other
// sequences get the tokens that they would get anyway. A runner that can run no more steps ends all
// sequences. No exception leaves the engine: a callback of a request that throws ends its sequence
// (engine/request.h), a runner that throws has refused the batch or failed the step.
//
// Thread safety: none; one owner. Host only, without LibTorch. A step allocates nothing in the
// steady state.

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
  // Gives the time that deadlines are compared with and latencies are measured by. If it throws,
  // its last time counts.
  std::function<absl::Time()> clock = absl::Now;
  // Gets the spans of the engine (runner/trace/step_trace.h); must outlive it. Null: none.
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

  // Ends the request's unfinished sequences: appends an event kCancelled for each. They get no other
  // event. Errors: NotFound if all sequences of the request have ended, or if it is unknown.
  absl::Status Cancel(SequenceId id, std::vector<TokenEvent>& events);

  // Whether Step() has anything to do.
  bool has_work() const { return scheduler_->has_work(); }

  // Launches the next step. If max_steps_in_flight steps are in flight or no step can be launched,
  // waits for the tokens of the oldest step. Appends an event for each new token and for each
  // sequence that ended to `events`.
  // Errors: the reason why the runner can run no more steps; all sequences have had their last event
  // then. A failure that ends some sequences only is in their events, and the result is OK.
  absl::Status Step(std::vector<TokenEvent>& events);

  // Keeps the other ranks of a divided model from timing out: call it from time to time while there
  // is no work. Errors: those of StepRunner::Idle().
  absl::Status Idle();

  // Makes all that has been computed so far impossible to find as a prefix: for weights that have
  // changed. Call it between two calls of Step(). Running sequences keep the keys that they have.
  void ForgetPrefixes() { scheduler_->ForgetPrefixes(); }

  // The prefixes that became available or unavailable since the last call, at most
  // SchedulerPolicy::num_prefix_events: for a router that sends requests to the process that has
  // their prefix (cache/prefix/prefix_events.h). Valid until the next call.
  PrefixEvents TakePrefixEvents() { return scheduler_->TakePrefixEvents(); }

  EngineMetrics metrics() const;
  // How many steps replayed a graph, and how many ran eagerly for which reason.
  const GraphReport& graph_report() const { return runner_->graph_report(); }
  const Scheduler& scheduler() const { return *scheduler_; }
  const StepRunner& runner() const { return *runner_; }

 private:
  // The times at which the sequences of a request got their last token.
  struct Times {
    absl::Time added;
    std::vector<absl::Time> last_token;  // by sample; `added` before the first token
    int num_unfinished = 0;
    bool is_forced = false;  // its tokens are given, not generated
  };
  struct LaunchedStep {
    int64_t step = 0;
    absl::Time launched;
  };

  Engine(std::unique_ptr<StepRunner> runner, std::unique_ptr<Scheduler> scheduler,
         const EngineOptions& options);
  absl::Time Now();  // of the clock
  absl::Status RunStep(std::vector<TokenEvent>& events);
  // Whether this call launched a step.
  bool LaunchNext(std::vector<TokenEvent>& events);
  void AwaitOldest(std::vector<TokenEvent>& events);
  // Ends all sequences if the runner can run no more steps, and returns the reason.
  absl::Status CheckRunner(std::vector<TokenEvent>& events);
  void Count(absl::Span<const TokenEvent> events);

  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<Scheduler> scheduler_;
  std::function<absl::Time()> clock_;
  absl::Time now_ = absl::UnixEpoch();            // the last value of clock_
  StepTrace* trace_;                              // null: none
  std::vector<LaunchedStep> in_flight_;           // oldest first
  bool measures_steps_ = false;                   // SpeculationPolicy::measures_steps
  absl::Time last_ended_ = absl::InfinitePast();  // end of the newest measured step
  absl::flat_hash_map<SequenceId, Times> times_;
  EngineMetrics counts_;  // counters that the scheduler and the runner do not have
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_ENGINE_H_
