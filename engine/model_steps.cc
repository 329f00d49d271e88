#include "engine/model_steps.h"

#include "base/status_macros.h"

namespace reprise {

absl::StatusOr<int64_t> ModelSteps::Launch(const ScheduledBatch& batch) {
  REPRISE_ASSIGN_OR_RETURN(const StepTicket ticket, runner_.Launch(batch));
  return ticket.step;
}

absl::StatusOr<StepOutput> ModelSteps::Await(int64_t ticket) {
  REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_.Await({.step = ticket}));
  logits_ = result.logits;
  earlier_logits_ = result.earlier_logits;
  return StepOutput{.tokens = result.tokens,
                    .log_probs = result.log_probs,
                    .earlier_log_probs = result.earlier_log_probs,
                    .num_new_tokens = result.num_new_tokens,
                    .new_tokens = result.new_tokens,
                    .stride = 1 + runner_.max_drafts()};
}

at::Tensor ModelSteps::logits(const TokenEvent& event) const {
  const at::Tensor& logits = event.earlier < 0 ? logits_ : earlier_logits_;
  if (!event.token.has_value() || !logits.defined() || event.row < 0) return at::Tensor();
  return logits[event.earlier < 0 ? event.row : event.earlier];
}

}  // namespace reprise
