#include "engine/engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Model* model, const EngineOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner,
                           ModelRunner::Create(model, options.runner));
  REPRISE_ASSIGN_OR_RETURN(
      std::unique_ptr<Scheduler> scheduler,
      Scheduler::Create({.max_num_seqs = runner->max_num_seqs(),
                         .max_num_tokens = runner->max_num_tokens(),
                         .prefill_chunk = options.prefill_chunk,
                         .max_seq_len = runner->max_seq_len(),
                         .max_steps_in_flight = runner->max_steps_in_flight(),
                         .num_blocks = runner->num_blocks(),
                         .block_size = runner->block_size(),
                         .groups = {runner->kv_groups().begin(), runner->kv_groups().end()},
                         .max_encoder_tokens = runner->max_encoder_tokens(),
                         .max_encoder_step_tokens = runner->max_encoder_step_tokens(),
                         .prefix_reuse = options.prefix_reuse,
                         .partial_hits = options.partial_hits}));
  return std::unique_ptr<Engine>(new Engine(std::move(runner), std::move(scheduler)));
}

Engine::Engine(std::unique_ptr<ModelRunner> runner, std::unique_ptr<Scheduler> scheduler)
    : runner_(std::move(runner)), scheduler_(std::move(scheduler)) {
  in_flight_.reserve(runner_->max_steps_in_flight());
}

absl::StatusOr<SequenceId> Engine::Add(Request request) {
  REPRISE_RETURN_IF_ERROR(runner_->CheckTokens("prompt", request.prompt));
  REPRISE_RETURN_IF_ERROR(runner_->CheckTokens("forced_tokens", request.forced_tokens));
  REPRISE_RETURN_IF_ERROR(runner_->CheckTokens("encoder_tokens", request.encoder_tokens));
  return scheduler_->Add(std::move(request));
}

absl::Status Engine::Step(std::vector<TokenEvent>& events) {
  bool launched = false;
  if (scheduler_->can_schedule()) {
    const ScheduledBatch& batch = scheduler_->Schedule();
    if (!batch.rows.empty()) {
      REPRISE_ASSIGN_OR_RETURN(const StepTicket ticket, runner_->Launch(batch));
      in_flight_.push_back(ticket);
      launched = true;
    }
  }
  if (in_flight_.empty() || (launched && scheduler_->can_schedule())) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_->Await(in_flight_.front()));
  in_flight_.erase(in_flight_.begin());
  scheduler_->Commit(result.tokens, events);
  return absl::OkStatus();
}

}  // namespace reprise
