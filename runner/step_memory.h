// The memory of a runner's steps: slot state, step arrays and logits, allocated once at maximum
// size on the device, and never moved.

#ifndef REPRISE_RUNNER_STEP_MEMORY_H_
#define REPRISE_RUNNER_STEP_MEMORY_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/dtype.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/graphs/step_buffers.h"
#include "reprise/runner/slots/slot_state.h"
#include "reprise/runner/slots/step_arrays.h"

namespace reprise {

struct StepMemoryShape {
  int max_rows = 0;  // and slots
  int max_tokens = 0;
  int max_blocks = 0;  // of a sequence, in each group
  int num_groups = 1;
  int max_earlier_logits = 0;  // rows of logits after those of the rows
  int max_drafts = 0;          // of a row
  // Tokens of a slot that are kept for drafters; 0: none.
  int history_len = 0;
  // The most tokens of a row in the first pass of a draft model; 0: there is none.
  int max_draft_query_len = 0;
  // Drafts may be trees: the arrays of trees are there. A pass of a draft model chooses up to
  // max_draft_nodes drafts of a row.
  bool has_trees = false;
  int max_draft_nodes = 1;
  bool keeps_draft_logits = false;  // StepArrays::draft_logits is there
  int num_position_dims = 1;
  int vocab_size = 0;
  DType logits_dtype = DType::kFloat32;
};

class StepMemory {
 public:
  // All zero. Errors: ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<StepMemory>> Allocate(const StepMemoryShape& shape,
                                                              c10::Device device);

  const SlotState& slots() const { return slots_; }
  // num_faults is null: it differs from step to step.
  const StepArrays& arrays() const { return arrays_; }
  // Of the passes of a draft model, of max_rows * max_draft_query_len tokens.
  const StepArrays& draft_arrays() const { return draft_arrays_; }
  // [max_rows + max_earlier_logits, vocab_size]
  const at::Tensor& logits() const { return all_logits_; }
  // The first rows of it; up to max_rows, and those of steps with drafts, they are made beforehand.
  // REQUIRES: it has so many.
  at::Tensor logits(int num_rows) const {
    return num_rows < static_cast<int>(logits_.size()) ? logits_[num_rows]
                                                       : all_logits_.narrow(0, 0, num_rows);
  }

  // The first `count` elements of an array as a tensor over the same memory.
  at::Tensor View(int32_t* array, int64_t count) const;
  at::Tensor View(int64_t* array, int64_t count) const;
  // The positions of the first `num_tokens` as the model sees them: [num_tokens], or with several
  // dimensions [num_position_dims, num_tokens].
  at::Tensor ModelPositions(int64_t num_tokens) const;

  // Fills the arrays as refill does for rows of prompts in slots 0, 1, ..., whose keys have no slots:
  // for a step that only takes time and memory. `query_start_loc` [rows + 1], `seq_lens` [rows],
  // `positions` [tokens]; each row has `encoder_len` keys of an encoder. On LibTorch's current
  // stream, as Zero(), which sets slots and arrays to zero again.
  void FillLiveRows(absl::Span<const int32_t> query_start_loc, absl::Span<const int32_t> seq_lens,
                    absl::Span<const int32_t> positions, int encoder_len);
  void Zero();

  int64_t bytes() const;
  void AddTo(Fingerprint& fingerprint) const;

 private:
  explicit StepMemory(c10::Device device) : device_(device) {}
  // Plans the buffers, allocates them and points slots_ and both arrays at them.
  absl::Status Cut(const StepMemoryShape& shape);

  c10::Device device_;
  at::Tensor bytes_;
  StepBuffers buffers_;
  SlotState slots_;
  StepArrays arrays_;
  StepArrays draft_arrays_;
  at::Tensor all_logits_;
  std::vector<at::Tensor> logits_;  // [i]: of i rows
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_MEMORY_H_
