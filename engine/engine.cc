#include "reprise/engine/engine.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "reprise/base/catch_all.h"
#include "reprise/base/status_macros.h"
#include "reprise/engine/preemption_rule.h"
#include "reprise/engine/speculation_policy.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/step_result.h"

namespace reprise {
namespace {

absl::Status CheckLogits(const StepRunner& runner, const Request& request) {
  LogitsRequest logits = ToLogitsRequest(request);
  logits.params.num_log_probs = request.num_log_probs;
  logits.params.num_known_log_probs = -1;
  REPRISE_RETURN_IF_ERROR(runner.CheckLogits(logits));
  logits = {.params = {.num_log_probs = request.num_prompt_log_probs}};
  const absl::Status status = runner.CheckLogits(logits);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("of the prompt: ", status.message()));
}

// Returns scheduler options for the runner. Unless the policy has preemption costs, they follow
// from the step times that the runner has measured, if any.
absl::StatusOr<SchedulerOptions> SchedulerOptionsFor(const StepRunner& runner,
                                                     SchedulerPolicy policy) {
  const int max_levels = runner.shape().drafts.max_levels();
  if (policy.speculation.has_value() && policy.speculation->num_drafts > max_levels) {
    return absl::InvalidArgumentError(absl::StrCat(
        "speculation.num_drafts must be at most what the runner verifies: expected at most ",
        max_levels, ", got ", policy.speculation->num_drafts));
  }
  const std::optional<StepTimes> times = runner.step_times();
  if (!policy.preemption_costs.has_value() && times.has_value()) {
    policy.preemption_costs = WithMeasuredSteps(H200PreemptionCosts(), times->num_tokens,
                                                times->largest_us, times->min_us);
  }
  return SchedulerOptions{.shape = runner.shape(), .policy = policy};
}

}  // namespace

absl::Status Engine::CheckOptions(const StepRunner& runner, const EngineOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const SchedulerOptions scheduler,
                           SchedulerOptionsFor(runner, options.scheduler));
  return Scheduler::Create(scheduler).status();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(std::unique_ptr<StepRunner> runner,
                                                       const EngineOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const SchedulerOptions scheduler_options,
                           SchedulerOptionsFor(*runner, options.scheduler));
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Scheduler> scheduler,
                           Scheduler::Create(scheduler_options));
  return std::unique_ptr<Engine>(new Engine(std::move(runner), std::move(scheduler), options));
}

Engine::Engine(std::unique_ptr<StepRunner> runner, std::unique_ptr<Scheduler> scheduler,
               const EngineOptions& options)
    : runner_(std::move(runner)),
      scheduler_(std::move(scheduler)),
      clock_(options.clock),
      trace_(options.trace) {
  if (!clock_) clock_ = absl::Now;
  const SpeculationPolicy& speculation = *scheduler_->options().policy.speculation;
  measures_steps_ = speculation.num_drafts > 0 && speculation.measures_steps;
  in_flight_.reserve(runner_->shape().max_steps_in_flight);
}

absl::Time Engine::Now() {
  const absl::Status status = CallUser("clock", [&] { now_ = clock_(); });
  if (!status.ok()) {
    LOG_FIRST_N(ERROR, 1) << status;
  }
  return now_;
}

absl::StatusOr<SequenceId> Engine::Add(Request request) {
  const absl::Time now = Now();
  const int64_t num_prompt = static_cast<int64_t>(request.prompt.size());
  const int num_sequences = request.num_sequences;
  const bool is_forced = !request.forced_tokens.empty();
  const absl::StatusOr<SequenceId> id = CatchAll([&]() -> absl::StatusOr<SequenceId> {
    if (const absl::Status status = runner_->status(); !status.ok()) {
      return absl::UnavailableError(
          absl::StrCat("the runner can run no more steps: ", status.ToString()));
    }
    REPRISE_RETURN_IF_ERROR(runner_->CheckTokens("prompt", request.prompt));
    REPRISE_RETURN_IF_ERROR(runner_->CheckTokens("forced_tokens", request.forced_tokens));
    REPRISE_RETURN_IF_ERROR(runner_->CheckTokens("predicted_tokens", request.predicted_tokens));
    REPRISE_RETURN_IF_ERROR(runner_->CheckTokens("encoder_tokens", request.encoder_tokens));
    for (size_t i = 0; i < request.embeddings.size(); ++i) {
      REPRISE_RETURN_IF_ERROR(runner_->CheckEmbeddings(absl::StrCat("embeddings[", i, "]"),
                                                       request.embeddings[i].rows));
    }
    REPRISE_RETURN_IF_ERROR(CheckLogits(*runner_, request));
    return scheduler_->Add(std::move(request));
  });
  if (!id.ok()) {
    ++counts_.num_refused;
    return id;
  }
  ++counts_.num_requests;
  counts_.num_prompt_tokens += num_prompt;
  times_.emplace(*id, Times{.added = now,
                            .last_token = std::vector<absl::Time>(num_sequences, now),
                            .num_unfinished = num_sequences,
                            .is_forced = is_forced});
  return id;
}

absl::Status Engine::Cancel(SequenceId id, std::vector<TokenEvent>& events) {
  const size_t num_before = events.size();
  const absl::Status status = scheduler_->Cancel(id, events);
  Count(absl::MakeConstSpan(events).subspan(num_before));
  return status;
}

absl::Status Engine::Step(std::vector<TokenEvent>& events) {
  const size_t num_before = events.size();
  const absl::Status status = RunStep(events);
  Count(absl::MakeConstSpan(events).subspan(num_before));
  return status;
}

absl::Status Engine::RunStep(std::vector<TokenEvent>& events) {
  const StepTrace::Span span(trace_, "engine", counts_.num_steps);
  REPRISE_RETURN_IF_ERROR(CheckRunner(events));
  scheduler_->EndExpired(Now(), events);
  const bool launched = LaunchNext(events);
  if (!in_flight_.empty() && !(launched && scheduler_->can_schedule())) AwaitOldest(events);
  return CheckRunner(events);
}

bool Engine::LaunchNext(std::vector<TokenEvent>& events) {
  if (!scheduler_->can_schedule()) return false;
  const ScheduledBatch& batch = [&]() -> const ScheduledBatch& {
    const StepTrace::Span span(trace_, "schedule", counts_.num_steps);
    return scheduler_->Schedule();
  }();
  if (batch.rows.empty()) return false;
  const absl::Time launched = measures_steps_ ? Now() : absl::InfinitePast();
  const absl::StatusOr<int64_t> step = CatchAll([&] { return runner_->Launch(batch); });
  if (step.ok()) {
    in_flight_.push_back({.step = *step, .launched = launched});
    ++counts_.num_steps;
    return true;
  }
  ++counts_.num_failed_steps;
  LOG(ERROR) << "the runner refused a batch of " << batch.rows.size() << " rows: " << step.status();
  scheduler_->AbandonLaunch(step.status(), events);
  return false;
}

void Engine::AwaitOldest(std::vector<TokenEvent>& events) {
  const auto [step, launched] = in_flight_.front();
  const absl::StatusOr<StepResult> result =
      CatchAll([&, step = step] { return runner_->Await(step); });
  in_flight_.erase(in_flight_.begin());
  const StepTrace::Span span(trace_, "commit", step);
  const absl::Time ended = measures_steps_ ? Now() : absl::InfinitePast();
  const absl::Time began = std::max(launched, std::exchange(last_ended_, ended));
  if (result.ok()) {
    if (measures_steps_) scheduler_->ObserveStep(ended - began, *result);
    const size_t num_before = events.size();
    scheduler_->Commit(*result, events);
    for (TokenEvent& event : absl::MakeSpan(events).subspan(num_before)) event.step = step;
    return;
  }
  ++counts_.num_failed_steps;
  LOG(ERROR) << "a step failed: " << result.status();
  scheduler_->CommitFailed(result.status(), events);
}

absl::Status Engine::Idle() {
  return CatchAll([&] { return runner_->Idle(); });
}

absl::Status Engine::CheckRunner(std::vector<TokenEvent>& events) {
  const absl::Status status = CatchAll([&] { return runner_->status(); });
  if (status.ok()) return status;
  scheduler_->EndAll(status, events);
  in_flight_.clear();
  return status;
}

void Engine::Count(absl::Span<const TokenEvent> events) {
  if (events.empty()) return;
  const absl::Time now = Now();
  for (const TokenEvent& event : events) {
    const auto it = times_.find(event.sequence);
    CHECK(it != times_.end()) << "sequence " << event.sequence;
    Times& times = it->second;
    if (event.token.has_value() && times.is_forced) {
      ++counts_.num_forced_tokens;
    } else if (event.token.has_value()) {
      absl::Time& last = times.last_token[event.sample];
      LatencyHistogram& latencies =
          event.index == 0 ? counts_.time_to_first_token : counts_.inter_token_latency;
      latencies.Observe(now - last);
      last = now;
      ++counts_.num_generated_tokens;
    }
    if (event.finish == FinishReason::kNone) continue;
    ++counts_.num_finished[static_cast<int>(event.finish)];
    if (--times.num_unfinished == 0) times_.erase(it);
  }
}

EngineMetrics Engine::metrics() const {
  EngineMetrics metrics = counts_;
  metrics.num_waiting = scheduler_->num_waiting();
  metrics.num_running = scheduler_->num_running();
  metrics.num_blocks = runner_->shape().num_blocks - 1;
  metrics.num_blocks_used = scheduler_->blocks().pool().num_used();
  metrics.num_preemptions = scheduler_->num_preemptions();
  if (const SwapStore* const store = scheduler_->swap_store()) {
    const SwapStatistics& swaps = scheduler_->swap_statistics();
    const int64_t bytes_per_block = runner_->shape().bytes_per_block;
    metrics.num_swap_blocks = store->host_pool().num_blocks() - 1;
    metrics.num_swap_blocks_used = store->host_pool().num_used();
    metrics.num_swap_preemptions = swaps.num_swap_outs;
    metrics.num_swapped_out_bytes = swaps.num_blocks_out * bytes_per_block;
    metrics.num_swapped_in_bytes = swaps.num_blocks_in * bytes_per_block;
  }
  metrics.num_forks = scheduler_->num_forks();
  const PrefixStatistics prefixes = scheduler_->prefix_statistics();
  metrics.num_prefix_tokens = prefixes.num_tokens_asked;
  metrics.num_prefix_tokens_hit = prefixes.num_tokens_hit;
  metrics.speculation = scheduler_->speculation_statistics();
  const GraphReport& graphs = runner_->graph_report();
  metrics.num_graph_replays = graphs.num_replays();
  metrics.num_eager_steps = graphs.num_eager_steps();
  return metrics;
}

}  // namespace reprise
