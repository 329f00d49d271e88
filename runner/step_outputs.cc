#include "reprise/runner/step_outputs.h"

#include <ATen/ops/empty_like.h>

#include <utility>

#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

namespace reprise {

absl::StatusOr<StepOutputs> StepOutputs::Create(const StepOutputsOptions& options,
                                                const StepMemory& memory, DeviceDriver& driver) {
  StepOutputs outputs;
  outputs.layout_ = {.max_rows = options.max_rows, .max_drafts = options.max_drafts};
  outputs.keeps_logits_ = options.keeps_logits;
  const int64_t size = outputs.layout_.size();
  REPRISE_ASSIGN_OR_RETURN(outputs.memory_, driver.AllocateMapped(options.num_outputs * size *
                                                                  int64_t{sizeof(int32_t)}));
  for (int i = 0; i < options.num_outputs; ++i) {
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Fence> written, driver.MakeFence());
    StepOutput output = {.tokens = outputs.memory_->host<int32_t>() + i * size,
                         .device_tokens = outputs.memory_->device<int32_t>() + i * size,
                         .written = std::move(written)};
    if (options.keeps_logits) {
      const at::Tensor logits = at::empty_like(memory.logits());
      for (int rows = 0; rows <= options.max_rows; ++rows) {
        output.logits.push_back(logits.narrow(0, 0, rows));
      }
      output.earlier_logits = logits.narrow(0, options.max_rows, options.max_earlier_logits);
    }
    if (options.max_drafts > 0) output.unsettled.reserve(options.max_rows);
    outputs.outputs_.push_back(std::move(output));
  }
  return outputs;
}

absl::Status StepOutputs::KeepLogits(const StepPlan& plan, const StepMemory& memory) const {
  const StepOutput& output = at(plan.output);
  if (output.logits.empty()) return absl::OkStatus();
  return CatchTorch([&] {
    output.logits[plan.num_rows].copy_(memory.logits(plan.num_rows));
    const int num_earlier = plan.shape.num_earlier_logits;
    if (num_earlier > 0) {
      output.earlier_logits.narrow(0, 0, num_earlier)
          .copy_(memory.logits().narrow(0, plan.decision.key.padded_num_seqs, num_earlier));
    }
    return absl::OkStatus();
  });
}

}  // namespace reprise
