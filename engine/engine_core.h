// The engine without a model: joins a Scheduler (which sequences take part in a step) to a
// StepRunner (their computation), survives what fails, and counts.
//
//   REPRISE_ASSIGN_OR_RETURN(auto engine, EngineCore::Create(runner, {.scheduler = {...}}));
//
// Use Engine (engine/engine.h) to serve a model; EngineCore if the steps are computed otherwise.
//
// Failures. A step that fails, a row that gives no token and a batch that the runner refuses end
// the sequences concerned with FinishReason::kError; their events say why. All others continue, and
// get the tokens that they would get anyway. A runner that can run no more steps ends all.
//
// Thread safety: none; one owner. Host only; a step allocates nothing in the steady state.

#ifndef ENGINE_ENGINE_CORE_H_
#define ENGINE_ENGINE_CORE_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "cache/prefix/prefix_events.h"
#include "engine/engine_metrics.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/step_engine.h"
#include "engine/step_runner.h"
#include "runner/step_trace.h"

namespace reprise {

struct EngineCoreOptions {
  SchedulerOptions scheduler = {};  // max_steps_in_flight and so on: no more than the runner serves
  // What deadlines are compared with and latencies are measured by.
  std::function<absl::Time()> clock = absl::Now;
  // Gets the spans of the engine (runner/step_trace.h); must outlive it. Null: none.
  StepTrace* trace = nullptr;
};

class EngineCore final : public StepEngine {
 public:
  // The runner must outlive the engine. Errors: InvalidArgument naming the option.
  static absl::StatusOr<std::unique_ptr<EngineCore>> Create(StepRunner* runner,
                                                            const EngineCoreOptions& options);

  // Errors: those of Scheduler::Add(); InvalidArgument for token ids outside the vocabulary, for
  // embeddings that the runner does not take, and for penalties, biases, stages and
  // log-probabilities that it does not provide for; Unavailable, with the cause, if the runner can
  // run no more steps.
  absl::StatusOr<SequenceId> Add(Request request) override;

  absl::Status Cancel(SequenceId id, std::vector<TokenEvent>& events) override;
  bool has_work() const override { return scheduler_->has_work(); }

  // Ends sequences whose deadline has passed, launches the next step and, once as many steps are in
  // flight as the scheduler allows or nothing can be launched, takes the tokens of the oldest.
  // Errors: the runner's status(), once all sequences have ended.
  absl::Status Step(std::vector<TokenEvent>& events) override;

  absl::Status Idle() override { return runner_->Idle(); }
  void ForgetPrefixes() override { scheduler_->ForgetPrefixes(); }
  // Those of Scheduler::TakePrefixEvents().
  PrefixEvents TakePrefixEvents() { return scheduler_->TakePrefixEvents(); }
  EngineMetrics metrics() const override;
  const Scheduler& scheduler() const { return *scheduler_; }

 private:
  // When the sequences of a request have got their last token, or none yet.
  struct Times {
    absl::Time added;
    std::vector<absl::Time> last_token;  // by sample; `added` before the first
    int num_unfinished = 0;
    bool is_forced = false;  // its tokens are given, not generated
  };

  EngineCore(StepRunner* runner, std::unique_ptr<Scheduler> scheduler,
             const EngineCoreOptions& options);
  absl::Status RunStep(std::vector<TokenEvent>& events);
  // Whether a step is in flight because of this call.
  bool LaunchNext(std::vector<TokenEvent>& events);
  void AwaitOldest(std::vector<TokenEvent>& events);
  // Ends all sequences if the runner can run no more steps, and returns why.
  absl::Status CheckRunner(std::vector<TokenEvent>& events);
  void Count(absl::Span<const TokenEvent> events);

  StepRunner* runner_;
  std::unique_ptr<Scheduler> scheduler_;
  std::function<absl::Time()> clock_;
  StepTrace* trace_;  // null: none
  struct LaunchedStep {
    int64_t ticket = 0;
    absl::Time launched;
  };
  std::vector<LaunchedStep> in_flight_;  // oldest first
  // Whether steps are timed (SpeculationPolicy::measures_steps), and when the last one ended.
  bool measures_steps_ = false;
  absl::Time last_ended_ = absl::InfinitePast();
  absl::flat_hash_map<SequenceId, Times> times_;
  EngineMetrics counts_;  // what the scheduler and the runner do not count
};

}  // namespace reprise

#endif  // ENGINE_ENGINE_CORE_H_
