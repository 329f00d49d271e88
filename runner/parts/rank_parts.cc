#include "reprise/runner/parts/rank_parts.h"

#include <vector>

#include "reprise/base/status_macros.h"

namespace reprise {

void ContextPart::Fill(const GraphKey& key, const StepVariant&, Step::Parts& parts) const {
  const StepMemory& steps = memory_.steps();
  const StepArrays arrays = rows_.ArraysOf(steps.arrays());
  parts.batches = memory_.metadata().BatchesAt(key, arrays, steps.slots());
  rows_.Place(steps.arrays(), parts.batches);
  for (int group = 0; group < num_groups_; ++group) {
    parts.slot_mappings[group] = steps.View(arrays.group_slots(group), key.padded_num_tokens);
  }
}

StepStage::Work ContextPart::Before(const GraphKey& key, const StepVariant&) {
  return [this, key] {
    return rows_.Build(memory_.steps().arrays(), key.padded_num_seqs, key.padded_num_tokens);
  };
}

absl::Status ShardPart::Apply(const ScheduledBatch& batch, const StepPlan&) {
  sampler_->Plan(batch);
  return absl::OkStatus();
}

void ShardPart::Fill(const GraphKey& key, const StepVariant&, Step::Parts& parts) const {
  if (key.num_drafts == 0) parts.sharded_logits = sampler_->memory();
}

bool ShardPart::SamplesShards(const StepPlan& plan) const {
  const bool are_read = plan.keeps_logits || plan.shape.num_earlier_logits > 0;
  return sampler_->serves() && !are_read && !plan.has_logits_stages && !plan.scores_known_tokens;
}

absl::Status ShardPart::CompleteLogits(const StepPlan& plan) {
  if (SamplesShards(plan)) return absl::OkStatus();
  return sampler_->Gather(plan.num_logits(), memory_.steps().logits(plan.num_logits()));
}

absl::Status ShardPart::Choose(const StepPlan& plan, const LogitsStep& logits, int32_t* out) {
  if (!SamplesShards(plan)) return plain_.Choose(plan, logits, out);
  return sampler_->Sample({.num_logits = plan.num_logits(),
                           .num_rows = plan.decision.key.padded_num_seqs,
                           .slots = logits.slots,
                           .sample_slot = logits.sample_slot,
                           .out = out});
}

}  // namespace reprise
