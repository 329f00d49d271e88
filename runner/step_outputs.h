// A ring of step outputs, which the device writes and the host reads. The ring has one output more
// than the maximum number of steps in flight, so the host may read an output until the second
// launch after its step was awaited.
//
//   StepOutput& output = outputs.at(plan.output);
//   ... the device writes output.device_tokens ...
//   output.written->Arm();                           // on the step's stream
//   const absl::Status written = output.written->Wait();
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_STEP_OUTPUTS_H_
#define REPRISE_RUNNER_STEP_OUTPUTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/mapped_buffer.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/slots/slot_mirror.h"
#include "reprise/runner/step_memory.h"
#include "reprise/runner/step_plan.h"

namespace reprise {

struct StepOutputsOptions {
  int num_outputs = 0;
  int max_rows = 0;
  int max_drafts = 0;          // maximum number per row; 0: steps have no drafts
  bool keeps_logits = false;   // a copy of each step's logits
  int max_earlier_logits = 0;  // number of logits rows that follow one row per sequence
};

// Offsets of an output's int32 values: a token per row, the number of faults, and with drafts the
// number of new tokens per row and the new tokens, in rows of 1 + max_drafts.
struct StepOutputLayout {
  int64_t max_rows = 0;
  int64_t max_drafts = 0;

  int64_t num_faults() const { return max_rows; }
  int64_t num_new() const { return max_rows + 1; }
  int64_t new_tokens() const { return 2 * max_rows + 1; }
  int64_t size() const { return max_rows + 1 + (max_drafts > 0 ? max_rows * (2 + max_drafts) : 0); }
};

struct StepOutput {
  int32_t* tokens = nullptr;         // on the host, with the layout of StepOutputLayout
  int32_t* device_tokens = nullptr;  // the same memory on the device
  std::unique_ptr<Fence> written;
  std::vector<at::Tensor> logits = {};  // entry i: [i, vocab_size]; empty if logits are not kept
  // [max_earlier_logits, vocab_size]; undefined if logits are not kept.
  at::Tensor earlier_logits = {};
  std::vector<UnsettledRow> unsettled = {};
  StepPlan plan = {};
  absl::Status status = {};  // result of the launch
  bool has_result = false;   // Await() has returned the step's result
};

class StepOutputs {
 public:
  // Allocates. Errors: ResourceExhausted.
  static absl::StatusOr<StepOutputs> Create(const StepOutputsOptions& options,
                                            const StepMemory& memory, DeviceDriver& driver);

  int size() const { return static_cast<int>(outputs_.size()); }
  int IndexOf(int64_t step) const { return static_cast<int>(step % size()); }
  StepOutput& at(int index) { return outputs_[index]; }
  const StepOutput& at(int index) const { return outputs_[index]; }

  const StepOutputLayout& layout() const { return layout_; }
  // The first output, on the device. Outputs are layout().size() int32 values apart.
  int32_t* device_tokens() const { return memory_->device<int32_t>(); }
  bool keeps_logits() const { return keeps_logits_; }

  // Copies the step's logits if they are kept. Runs on the step's stream.
  absl::Status KeepLogits(const StepPlan& plan, const StepMemory& memory) const;

 private:
  StepOutputs() = default;

  StepOutputLayout layout_;
  bool keeps_logits_ = false;
  std::optional<MappedBuffer> memory_;
  std::vector<StepOutput> outputs_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_OUTPUTS_H_
