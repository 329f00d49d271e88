#include "reprise/runner/model_runner.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/runner_setup.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(
    Model* model, const ModelRunnerOptions& options, std::unique_ptr<DeviceDriver> driver) {
  return RunnerSetup(model, options).Run(std::move(driver));
}

ModelRunner::~ModelRunner() {
  // Steps in flight may still read the memory that is about to be freed: waits for these steps.
  while (num_awaited_ < num_launched_) {
    outputs_->at(outputs_->IndexOf(num_awaited_++)).written->Wait().IgnoreError();
  }
}

absl::Status ModelRunner::CheckCanLaunch() const {
  if (!status_.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the runner has failed and can run no more steps: ", std::string(status_.message())));
  }
  const int64_t num_in_flight = num_launched_ - num_awaited_;
  if (num_in_flight < shape_.max_steps_in_flight) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the oldest step must be awaited before another is launched: expected fewer ",
                   "than ", shape_.max_steps_in_flight, " in flight, got ", num_in_flight));
}

absl::StatusOr<int64_t> ModelRunner::Launch(const ScheduledBatch& batch) {
  const StepTrace::Span launch = tracer_->Span("launch", num_launched_);
  StepOutput& output = outputs_->at(outputs_->IndexOf(num_launched_));
  {
    const StepTrace::Span plan = tracer_->Span("plan", num_launched_);
    REPRISE_RETURN_IF_ERROR(CheckCanLaunch());
    REPRISE_RETURN_IF_ERROR(choice_->Note(batch));
    REPRISE_RETURN_IF_ERROR(parts_.Check(batch));
    REPRISE_ASSIGN_OR_RETURN(const StepDemand demand, mirror_->Advance(batch));
    // The batch is accepted. A later error fails the step, and Await() returns the error.
    Plan(batch, demand, output);
  }
  tracer_->Begin(output.plan);
  bool are_slots_applied = false;
  output.status = driver().OnStream([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(ApplySlotInputs(batch, output.plan));
    are_slots_applied = true;
    return RunStep(batch, output.plan);
  });
  if (!output.status.ok()) {
    // If the slots on the device differ from the mirror, no further step can run.
    status_ = are_slots_applied ? driver().Health() : output.status;
  }
  ranks_.TellOfStep(output.status);
  output.written->Arm();
  return num_launched_++;
}

void ModelRunner::Plan(const ScheduledBatch& batch, const StepDemand& demand, StepOutput& output) {
  StepPlan& plan = output.plan;
  plan = {.step = num_launched_,
          .output = outputs_->IndexOf(num_launched_),
          .num_rows = static_cast<int>(batch.rows.size()),
          .shape = demand.shape,
          .features = demand.features,
          .keeps_logits = outputs_->keeps_logits() || shape_.max_steps_in_flight == 1};
  StepCascade::Decision cascade;
  if (cascade_) cascade = cascade_->Decide(batch, *mirror_);
  plan.shape.cascade = cascade.rule.use();
  if (batch.rows.empty() && batch.idle == IdleStep::kRunModel) {
    plan.shape = {.num_seqs = 1, .num_tokens = 1, .max_query_len = 1, .max_seq_len = 1};
  }
  plan.decision = graphs_->Decide(plan.shape);
  if (plan.decision.key.cascade) plan.common_prefix_len = cascade.common_prefix_len;
  choice_->Plan(plan);
  plan.verifies_in_graph =
      plan.has_drafts() && !plan.has_logits_stages && graphs_->ReplaysCaptured(plan);
  output.has_result = false;
  output.unsettled.assign(mirror_->unsettled_rows().begin(), mirror_->unsettled_rows().end());
}

absl::Status ModelRunner::ApplySlotInputs(const ScheduledBatch& batch, const StepPlan& plan) {
  const StepTrace::Span span = tracer_->Span("refill", plan.step);
  for (BatchInput* const input : parts_.slot_inputs()) {
    REPRISE_RETURN_IF_ERROR(input->Apply(batch, plan));
  }
  tracer_->End(plan, DevicePart::kRefill);
  return absl::OkStatus();
}

absl::Status ModelRunner::RunStep(const ScheduledBatch& batch, StepPlan& plan) {
  for (BatchInput* const input : parts_.step_inputs()) {
    REPRISE_RETURN_IF_ERROR(input->Apply(batch, plan));
  }
  if (plan.shape.num_seqs > 0) {
    {
      StepTrace::Span span = tracer_->Span("forward", plan.step);
      REPRISE_RETURN_IF_ERROR(graphs_->Run(plan));
      span.SetDecision(plan.decision);
    }
    tracer_->End(plan, DevicePart::kForward);
    const StepTrace::Span span = tracer_->Span("sample", plan.step);
    REPRISE_RETURN_IF_ERROR(choice_->Choose(plan));
    tracer_->End(plan, DevicePart::kSample);
  }
  graphs_->Count(plan);
  return absl::OkStatus();
}

absl::StatusOr<StepResult> ModelRunner::Await(int64_t step) {
  if (num_awaited_ == num_launched_ || step != num_awaited_) {
    return absl::FailedPreconditionError(
        absl::StrCat("steps are awaited once, in the order of their launch: expected ",
                     num_awaited_ == num_launched_ ? "none" : absl::StrCat("step ", num_awaited_),
                     ", got step ", step));
  }
  const StepTrace::Span span = tracer_->Span("await", step);
  StepOutput& output = outputs_->at(outputs_->IndexOf(num_awaited_++));
  const StepPlan& plan = output.plan;
  // After a device fault, the output may still hold the tokens of an earlier step.
  const absl::Status written = output.written->Wait();
  tracer_->Collect(plan);
  status_.Update(written);
  REPRISE_RETURN_IF_ERROR(output.status);
  REPRISE_RETURN_IF_ERROR(written);
  const StepOutputLayout& layout = outputs_->layout();
  const int32_t num_faults = output.tokens[layout.num_faults()];
  if (num_faults != 0) {
    return absl::InternalError(
        absl::StrCat("step ", step, ": the device rejected ", num_faults, " parts of the batch"));
  }
  StepResult result = {.tokens = absl::MakeConstSpan(output.tokens, plan.num_rows),
                       .decision = plan.decision,
                       .step = step};
  if (plan.has_drafts()) {
    const int32_t* const num_new = output.tokens + layout.num_new();
    result.num_new_tokens = absl::MakeConstSpan(num_new, plan.num_rows);
    result.new_tokens_stride = static_cast<int>(1 + layout.max_drafts);
    result.new_tokens = absl::MakeConstSpan(output.tokens + layout.new_tokens(),
                                            plan.num_rows * result.new_tokens_stride);
    for (const UnsettledRow& row : output.unsettled) {
      mirror_->Settle(row, std::max(num_new[row.row], 1));
    }
  }
  if (choice_->has_log_probs()) {
    const RowLogProbsView log_probs = choice_->log_probs(plan.output);
    result.log_probs = log_probs.Rows(0, plan.num_rows);
    result.earlier_log_probs =
        log_probs.Rows(plan.decision.key.padded_num_seqs, plan.shape.num_earlier_logits);
  }
  output.has_result = true;
  return result;
}

absl::StatusOr<const StepOutput*> ModelRunner::KeptOutput(int64_t step) const {
  if (step < 0 || step != num_awaited_ - 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("logits can be read of the step that was awaited last: expected step ",
                     num_awaited_ - 1, ", got ", step));
  }
  const StepOutput& output = outputs_->at(outputs_->IndexOf(step));
  if (!output.has_result) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, " has failed: it has no logits"));
  }
  if (!output.plan.keeps_logits) {
    return absl::FailedPreconditionError(
        absl::StrCat("logits are kept with one step in flight, or with StepLogits::kOfEvery: got ",
                     shape_.max_steps_in_flight, " steps in flight"));
  }
  // If the step's logits were not copied, they are in the buffer that each launch overwrites.
  if (output.logits.empty() && num_launched_ != num_awaited_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the logits of step ", step, " must be read before the next launch"));
  }
  return &output;
}

absl::StatusOr<at::Tensor> ModelRunner::logits(int64_t step) const {
  REPRISE_ASSIGN_OR_RETURN(const StepOutput* const output, KeptOutput(step));
  const int num_rows = output->plan.num_rows;
  return output->logits.empty() ? memory_->steps().logits(num_rows) : output->logits[num_rows];
}

absl::StatusOr<at::Tensor> ModelRunner::earlier_logits(int64_t step) const {
  REPRISE_ASSIGN_OR_RETURN(const StepOutput* const output, KeptOutput(step));
  const int64_t count = output->plan.shape.num_earlier_logits;
  if (count == 0) return at::Tensor();
  if (output->earlier_logits.defined()) return output->earlier_logits.narrow(0, 0, count);
  return memory_->steps().logits().narrow(0, output->plan.decision.key.padded_num_seqs, count);
}

absl::StatusOr<StepResult> ModelRunner::Step(const ScheduledBatch& batch) {
  REPRISE_ASSIGN_OR_RETURN(const int64_t step, Launch(batch));
  return Await(step);
}

}  // namespace reprise
