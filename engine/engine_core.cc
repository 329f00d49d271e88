#include "engine/engine_core.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "engine/step_output.h"
#include "glog/logging.h"
#include "runner/sampling/logits_request.h"

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

}  // namespace

absl::StatusOr<std::unique_ptr<EngineCore>> EngineCore::Create(StepRunner* runner,
                                                               const EngineCoreOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Scheduler> scheduler,
                           Scheduler::Create(options.scheduler));
  return std::unique_ptr<EngineCore>(new EngineCore(runner, std::move(scheduler), options));
}

EngineCore::EngineCore(StepRunner* runner, std::unique_ptr<Scheduler> scheduler,
                       const EngineCoreOptions& options)
    : runner_(runner),
      scheduler_(std::move(scheduler)),
      clock_(options.clock),
      trace_(options.trace),
      measures_steps_(options.scheduler.speculation.num_drafts > 0 &&
                      options.scheduler.speculation.measures_steps) {
  if (!clock_) clock_ = absl::Now;
  in_flight_.reserve(options.scheduler.max_steps_in_flight);
}

absl::StatusOr<SequenceId> EngineCore::Add(Request request) {
  const absl::Time now = clock_();
  const int64_t num_prompt = static_cast<int64_t>(request.prompt.size());
  const int num_sequences = request.num_sequences;
  const bool is_forced = !request.forced_tokens.empty();
  const absl::StatusOr<SequenceId> id = [&]() -> absl::StatusOr<SequenceId> {
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
  }();
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

absl::Status EngineCore::Cancel(SequenceId id, std::vector<TokenEvent>& events) {
  const size_t num_before = events.size();
  const absl::Status status = scheduler_->Cancel(id, events);
  Count(absl::MakeConstSpan(events).subspan(num_before));
  return status;
}

absl::Status EngineCore::Step(std::vector<TokenEvent>& events) {
  const size_t num_before = events.size();
  const absl::Status status = RunStep(events);
  Count(absl::MakeConstSpan(events).subspan(num_before));
  return status;
}

absl::Status EngineCore::RunStep(std::vector<TokenEvent>& events) {
  const StepTrace::Span span(trace_, "engine", counts_.num_steps);
  REPRISE_RETURN_IF_ERROR(CheckRunner(events));
  scheduler_->EndExpired(clock_(), events);
  const bool launched = LaunchNext(events);
  if (!in_flight_.empty() && !(launched && scheduler_->can_schedule())) AwaitOldest(events);
  return CheckRunner(events);
}

bool EngineCore::LaunchNext(std::vector<TokenEvent>& events) {
  if (!scheduler_->can_schedule()) return false;
  const ScheduledBatch& batch = [&]() -> const ScheduledBatch& {
    const StepTrace::Span span(trace_, "schedule", counts_.num_steps);
    return scheduler_->Schedule();
  }();
  if (batch.rows.empty()) return false;
  const absl::Time launched = measures_steps_ ? clock_() : absl::InfinitePast();
  const absl::StatusOr<int64_t> ticket = runner_->Launch(batch);
  if (ticket.ok()) {
    in_flight_.push_back({.ticket = *ticket, .launched = launched});
    ++counts_.num_steps;
    return true;
  }
  ++counts_.num_failed_steps;
  LOG(ERROR) << "the runner refused a batch of " << batch.rows.size()
             << " rows: " << ticket.status();
  scheduler_->AbandonLaunch(ticket.status(), events);
  return false;
}

void EngineCore::AwaitOldest(std::vector<TokenEvent>& events) {
  const auto [ticket, launched] = in_flight_.front();
  const absl::StatusOr<StepOutput> result = runner_->Await(ticket);
  in_flight_.erase(in_flight_.begin());
  const StepTrace::Span span(trace_, "commit", ticket);
  const absl::Time ended = measures_steps_ ? clock_() : absl::InfinitePast();
  const absl::Time began = std::max(launched, std::exchange(last_ended_, ended));
  if (result.ok()) {
    if (measures_steps_) scheduler_->ObserveStep(ended - began, *result);
    scheduler_->Commit(*result, events);
    return;
  }
  ++counts_.num_failed_steps;
  LOG(ERROR) << "a step failed: " << result.status();
  scheduler_->CommitFailed(result.status(), events);
}

absl::Status EngineCore::CheckRunner(std::vector<TokenEvent>& events) {
  const absl::Status status = runner_->status();
  if (status.ok()) return status;
  scheduler_->EndAll(status, events);
  in_flight_.clear();
  return status;
}

void EngineCore::Count(absl::Span<const TokenEvent> events) {
  if (events.empty()) return;
  const absl::Time now = clock_();
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

EngineMetrics EngineCore::metrics() const {
  EngineMetrics metrics = counts_;
  metrics.num_waiting = scheduler_->num_waiting();
  metrics.num_running = scheduler_->num_running();
  metrics.num_blocks = scheduler_->options().num_blocks - 1;
  metrics.num_blocks_used = scheduler_->blocks().pool().num_used();
  metrics.num_preemptions = scheduler_->num_preemptions();
  if (const SwapStore* const store = scheduler_->swap_store()) {
    const SwapStatistics& swaps = scheduler_->swap_statistics();
    const int64_t bytes_per_block = scheduler_->options().bytes_per_block;
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
  metrics.num_graph_replays = runner_->num_replays();
  metrics.num_eager_steps = runner_->num_eager_steps();
  return metrics;
}

}  // namespace reprise
