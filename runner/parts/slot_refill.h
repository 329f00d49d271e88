// Applies a batch to the slots and step arrays on the device: writes the batch's delta to a ring of
// mapped memory, and enqueues one refill (runner/slots/refill.h).
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_PARTS_SLOT_REFILL_H_
#define REPRISE_RUNNER_PARTS_SLOT_REFILL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/mapped_buffer.h"
#include "reprise/base/staging_ring.h"
#include "reprise/runner/runner_memory.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/slots/refill_args.h"
#include "reprise/runner/slots/step_delta_layout.h"
#include "reprise/runner/step_outputs.h"
#include "reprise/runner/step_part.h"

namespace reprise {

class SlotRefill final : public StepPart, private BatchInput {
 public:
  // Lets the other parts of the runner change the arguments of a step's refill.
  using FillParts = std::function<void(const StepPlan& plan, RefillArgs& args)>;

  // Allocates. The objects that it is given must outlive it. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<SlotRefill>> Create(const RunnerShape& shape,
                                                            const RunnerMemory* memory,
                                                            const StepOutputs* outputs,
                                                            FillParts fill_parts);

  // The delta is in mapped host memory.
  int64_t bytes() const override { return 0; }
  void AddTo(Fingerprint&) const override {}
  BatchInput* slot_input() override { return this; }

 private:
  SlotRefill(const RunnerMemory* memory, const StepOutputs* outputs, FillParts fill_parts)
      : memory_(*memory), outputs_(*outputs), fill_parts_(std::move(fill_parts)) {}
  absl::Status Apply(const ScheduledBatch& batch, const StepPlan& plan) override;

  const RunnerMemory& memory_;
  const StepOutputs& outputs_;
  FillParts fill_parts_;
  StepDeltaCapacity capacity_;
  int block_size_ = 0;
  std::optional<MappedBuffer> delta_memory_;
  std::optional<StagingRing> delta_ring_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_PARTS_SLOT_REFILL_H_
