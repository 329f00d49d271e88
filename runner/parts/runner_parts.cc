#include "reprise/runner/parts/runner_parts.h"

#include <utility>

#include "reprise/base/status_macros.h"

namespace reprise {

void RunnerParts::Add(std::unique_ptr<StepPart> part) {
  if (part == nullptr) return;
  if (BatchInput* const input = part->slot_input()) slot_inputs_.push_back(input);
  if (BatchInput* const input = part->step_input()) step_inputs_.push_back(input);
  if (StepStage* const stage = part->stage()) stages_.push_back(stage);
  if (TokenChooser* const chooser = part->chooser()) choosers_.push_back(chooser);
  parts_.push_back(std::move(part));
}

int64_t RunnerParts::bytes() const {
  int64_t bytes = 0;
  for (const std::unique_ptr<StepPart>& part : parts_) bytes += part->bytes();
  return bytes;
}

absl::Status RunnerParts::SetCache() const {
  for (const std::unique_ptr<StepPart>& part : parts_) REPRISE_RETURN_IF_ERROR(part->SetCache());
  return absl::OkStatus();
}

void RunnerParts::FillRefill(const StepPlan& plan, RefillArgs& args) const {
  for (const std::unique_ptr<StepPart>& part : parts_) part->FillRefill(plan, args);
}

absl::Status RunnerParts::Check(const ScheduledBatch& batch) const {
  for (const BatchInput* input : slot_inputs_) REPRISE_RETURN_IF_ERROR(input->Check(batch));
  for (const BatchInput* input : step_inputs_) REPRISE_RETURN_IF_ERROR(input->Check(batch));
  return absl::OkStatus();
}

}  // namespace reprise
