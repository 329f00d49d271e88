#include "reprise/runner/parts/slot_refill.h"

#include <cstddef>
#include <vector>

#include "absl/algorithm/container.h"
#include "reprise/base/status_macros.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<SlotRefill>> SlotRefill::Create(const RunnerShape& shape,
                                                               const RunnerMemory* memory,
                                                               const StepOutputs* outputs,
                                                               FillParts fill_parts) {
  auto refill = std::unique_ptr<SlotRefill>(new SlotRefill(memory, outputs, std::move(fill_parts)));
  refill->block_size_ = shape.block_size;
  refill->capacity_ = {.num_slots = shape.max_num_seqs,
                       .max_updates = shape.max_updates(),
                       .max_rows = shape.max_num_seqs,
                       .max_tokens = shape.max_num_tokens,
                       .num_position_dims = shape.num_position_dims,
                       .has_trees = shape.drafts.has_trees};
  DeviceDriver& driver = memory->driver();
  const int num_slots = shape.max_steps_in_flight + 1;
  REPRISE_ASSIGN_OR_RETURN(refill->delta_memory_,
                           driver.AllocateMapped(num_slots * StepDeltaBytes(refill->capacity_)));
  std::vector<std::unique_ptr<Fence>> read;
  for (int i = 0; i < num_slots; ++i) {
    REPRISE_ASSIGN_OR_RETURN(read.emplace_back(), driver.MakeFence());
  }
  REPRISE_ASSIGN_OR_RETURN(
      refill->delta_ring_,
      StagingRing::Create(refill->delta_memory_->host_bytes(), std::move(read)));
  return refill;
}

absl::Status SlotRefill::Apply(const ScheduledBatch& batch, const StepPlan& plan) {
  const GraphKey& key = plan.decision.key;
  StagingSlot slot = delta_ring_->Acquire();
  WriteStepDelta(batch, plan.common_prefix_len, capacity_,
                 StepDeltaAt(capacity_, slot.bytes().data()));
  RefillArgs args{
      .delta = StepDeltaAt(capacity_, delta_memory_->device<std::byte>() + slot.offset_bytes()),
      .slots = memory_.steps().slots(),
      .arrays = memory_.steps().arrays(),
      .padded_num_rows = key.padded_num_seqs,
      .padded_num_tokens = key.padded_num_tokens,
      .padded_num_earlier_logits = key.num_earlier_logits,
      .has_scored_rows = !plan.logits.scored_slots.empty() || plan.has_drafts(),
      .has_drafts = plan.has_drafts(),
      .output = plan.verifies_in_graph ? 1 + plan.output : 0,
      .block_size = block_size_,
      .num_blocks = memory_.num_blocks()};
  absl::c_copy(memory_.classes().groups, args.groups);
  args.arrays.num_faults = outputs_.at(plan.output).device_tokens + outputs_.layout().num_faults();
  fill_parts_(plan, args);
  return memory_.driver().Refill(args);
}

}  // namespace reprise
