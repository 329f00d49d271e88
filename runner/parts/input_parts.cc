#include "reprise/runner/parts/input_parts.h"

#include "reprise/base/status_macros.h"

namespace reprise {

absl::Status EncoderPart::RunInput::Apply(const ScheduledBatch& batch, const StepPlan& plan) {
  if (batch.encodes.empty()) return absl::OkStatus();
  const StepTrace::Span span = part_.tracer_.Span("encode", plan.step);
  REPRISE_RETURN_IF_ERROR(part_.Run(batch.encodes));
  part_.tracer_.End(plan, DevicePart::kEncode);
  return absl::OkStatus();
}

absl::Status EmbeddingPart::Apply(const ScheduledBatch& batch, const StepPlan& plan) {
  if (!batch.embeddings.empty()) return embeddings_->Write(batch);
  return plan.decision.key.input == StepInput::kEmbeddings ? embeddings_->Clear()
                                                           : absl::OkStatus();
}

void EmbeddingPart::Fill(const GraphKey& key, const StepVariant&, Step::Parts& parts) const {
  if (key.input != StepInput::kEmbeddings) return;
  parts.embeddings = embeddings_->rows(key.padded_num_tokens);
  parts.is_embedded = embeddings_->is_embedded(key.padded_num_tokens);
}

void ScalePart::Fill(const GraphKey&, const StepVariant& variant, Step::Parts& parts) const {
  if (variant.calibrates) parts.calibrated = memory_.kv_scales();
}

EagerReason ScalePart::EagerReasonFor(const StepPlan& plan) const {
  // An idle step runs the model over padding, which has no keys to compute scales from.
  return calibrates_ && plan.num_rows > 0 ? EagerReason::kCalibrates : EagerReason::kNone;
}

void ScalePart::RanFor(EagerReason reason) {
  if (reason == EagerReason::kCalibrates) calibrates_ = false;
}

void WatchPart::Fill(const GraphKey&, const StepVariant& variant, Step::Parts& parts) const {
  parts.watch = variant.watch;
}

StepStage::Work WatchPart::Before(const GraphKey&, const StepVariant& variant) {
  if (variant.watch == nullptr) return nullptr;
  return [watch = variant.watch] {
    watch->Begin();
    return absl::OkStatus();
  };
}

StepStage::Work WatchPart::After(const GraphKey&, const StepVariant& variant) {
  if (variant.watch == nullptr) return nullptr;
  return [watch = variant.watch] { return watch->End(); };
}

}  // namespace reprise
