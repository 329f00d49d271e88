#include "reprise/runner/parts/token_choice.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {

absl::Status PlainChooser::Choose(const StepPlan& plan, const LogitsStep& logits, int32_t* out) {
  return driver_.Sample({.logits = logits.logits,
                         .slots = logits.slots,
                         .sample_slot = logits.sample_slot,
                         .out = out,
                         .features = plan.features});
}

absl::StatusOr<std::unique_ptr<TokenChoice>> TokenChoice::Create(const RunnerShape& shape,
                                                                 const LogitsOptions& logits,
                                                                 const RunnerMemory* memory,
                                                                 StepOutputs* outputs) {
  auto choice = std::unique_ptr<TokenChoice>(new TokenChoice(memory, outputs));
  DeviceDriver& driver = memory->driver();
  const auto allocate_mapped = [&](int64_t bytes) { return driver.AllocateMapped(bytes); };
  const auto make_fence = [&] { return driver.MakeFence(); };
  REPRISE_ASSIGN_OR_RETURN(choice->stages_,
                           LogitsStages::Create({.logits = logits,
                                                 .device = driver.device(),
                                                 .logits_dtype = memory->logits_dtype(),
                                                 .num_slots = shape.max_num_seqs,
                                                 .max_rows = shape.max_num_seqs,
                                                 .max_earlier_logits = shape.max_earlier_logits,
                                                 .vocab_size = shape.vocab_size,
                                                 .max_seq_len = shape.max_seq_len,
                                                 .max_steps_in_flight = shape.max_steps_in_flight},
                                                {allocate_mapped, make_fence}));
  choice->has_log_probs_ = logits.max_log_probs >= 0;
  choice->sample_slot_.reserve(shape.max_num_seqs);
  choice->scored_slots_.reserve(shape.max_num_seqs);
  choice->masks_.reserve(shape.max_num_seqs);
  return choice;
}

absl::Status TokenChoice::Note(const ScheduledBatch& batch) {
  sample_slot_.clear();
  scored_slots_.clear();
  masks_.clear();
  for (const ScheduledRow& row : batch.rows) {
    if (!row.allowed_tokens.empty()) {
      masks_.push_back({.row = static_cast<int>(sample_slot_.size()), .mask = row.allowed_tokens});
    }
    sample_slot_.push_back(row.output == RowOutput::kToken ? row.slot.value() : kNotSampled);
    if (row.is_scored()) scored_slots_.push_back(row.slot.value());
  }
  noted_ = {.leaves = batch.leaves,
            .requests = batch.logits_requests,
            .masks = masks_,
            .sample_slot = sample_slot_,
            .scored_slots = scored_slots_};
  for (const ScheduledRow& row : batch.rows) {
    if (row.draft_count() == 0 || !stages_->HasRequest(row.slot, noted_)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rows: slot ", row.slot.value(),
                     " has a LogitsRequest, whose stages do not see drafts: expected no drafts, ",
                     "got ", row.draft_count()));
  }
  if (noted_.requests.empty() && noted_.masks.empty()) return absl::OkStatus();
  for (const LogitsRequest& request : noted_.requests) {
    if (absl::c_any_of(batch.joins,
                       [&](const SlotJoin& join) { return join.slot == request.slot; })) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("logits_requests: slot ", request.slot.value(),
                                                   " does not join in this batch"));
  }
  return stages_->Check(noted_);
}

void TokenChoice::Plan(StepPlan& plan) {
  stages_->Plan(noted_);
  plan.logits = noted_;
  plan.has_logits_stages = stages_->is_needed();
  plan.scores_known_tokens = stages_->scores();
}

absl::Status TokenChoice::Apply(const ScheduledBatch&, const StepPlan& plan) {
  return stages_->Begin(plan.logits);
}

TokenChooser& TokenChoice::ChooserOf(const StepPlan& plan) {
  for (TokenChooser* const chooser : choosers_) {
    if (chooser->Serves(plan)) return *chooser;
  }
  return plain_chooser_;
}

absl::Status TokenChoice::Choose(const StepPlan& plan) {
  TokenChooser& chooser = ChooserOf(plan);
  REPRISE_RETURN_IF_ERROR(chooser.CompleteLogits(plan));
  REPRISE_RETURN_IF_ERROR(outputs_.KeepLogits(plan, memory_.steps()));
  const LogitsStep step = {.logits = memory_.steps().logits(plan.decision.key.padded_num_seqs),
                           .slots = memory_.steps().slots().sampling_slots(),
                           .sample_slot = memory_.steps().arrays().sample_slot};
  int32_t* const out = outputs_.at(plan.output).device_tokens;
  if (plan.has_logits_stages) REPRISE_RETURN_IF_ERROR(stages_->BeforeSample(step));
  REPRISE_RETURN_IF_ERROR(chooser.Choose(plan, step, out));
  if (plan.has_logits_stages) REPRISE_RETURN_IF_ERROR(stages_->AfterSample(step, plan.output));
  return ScoreKnownTokens(plan);
}

absl::Status TokenChoice::ScoreKnownTokens(const StepPlan& plan) {
  if (!plan.scores_known_tokens) return absl::OkStatus();
  const StepArrays& arrays = memory_.steps().arrays();
  return stages_->Score({.logits = memory_.steps().logits(plan.num_logits()),
                         .slot = arrays.scored_slot,
                         .token = arrays.scored_token},
                        plan.output);
}

}  // namespace reprise
