// The memory of a runner's steps: slot state, step arrays and logits. Allocated once on the device
// at maximum size; addresses are constant.

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
  int max_rows = 0;  // also the number of slots
  int max_tokens = 0;
  int max_blocks = 0;  // blocks per sequence in each group
  int num_groups = 1;
  int max_earlier_logits = 0;  // rows of logits after the logits of the rows
  int max_drafts = 0;          // maximum number of drafts per row
  // Number of tokens per slot that are stored for drafters; 0: none.
  int history_len = 0;
  // Maximum number of tokens per row in the first pass of a draft model; 0: no draft model.
  int max_draft_query_len = 0;
  // Whether drafts may be trees: then the arrays of trees exist. A pass of a draft model chooses at
  // most max_draft_nodes drafts per row.
  bool has_trees = false;
  int max_draft_nodes = 1;
  bool keeps_draft_logits = false;  // whether StepArrays::draft_logits exists
  int num_position_dims = 1;
  int vocab_size = 0;
  DType logits_dtype = DType::kFloat32;
};

class StepMemory {
 public:
  // Allocates zero-filled memory. Errors: ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<StepMemory>> Allocate(const StepMemoryShape& shape,
                                                              c10::Device device);

  const SlotState& slots() const { return slots_; }
  // num_faults is null, because it differs between steps.
  const StepArrays& arrays() const { return arrays_; }
  // The arrays for the passes of a draft model, with max_rows * max_draft_query_len tokens.
  const StepArrays& draft_arrays() const { return draft_arrays_; }
  // [max_rows + max_earlier_logits, vocab_size]
  const at::Tensor& logits() const { return all_logits_; }
  // The first `num_rows` rows of logits. For up to max_rows * (1 + max_drafts) rows, the views are
  // created in advance. REQUIRES: num_rows <= max_rows + max_earlier_logits.
  at::Tensor logits(int num_rows) const {
    return num_rows < static_cast<int>(logits_.size()) ? logits_[num_rows]
                                                       : all_logits_.narrow(0, 0, num_rows);
  }

  // Returns the first `count` elements of an array as a tensor over the same memory.
  at::Tensor View(int32_t* array, int64_t count) const;
  at::Tensor View(int64_t* array, int64_t count) const;
  // Returns the positions of the first `num_tokens` tokens as the model reads them: [num_tokens],
  // or with several dimensions [num_position_dims, num_tokens].
  at::Tensor ModelPositions(int64_t num_tokens) const;

  // Fills the arrays that attention, the model and its logits read as refill does for prompt rows
  // in slots 0, 1, ..., but without slots for their keys. For a step that only measures time and
  // memory. `query_start_loc`: [rows + 1]; `seq_lens`: [rows]; `positions`: [tokens]; each row has
  // `encoder_len` keys of an encoder. Zero() resets slots and arrays to zero. Both use LibTorch's
  // current stream.
  void FillLiveRows(absl::Span<const int32_t> query_start_loc, absl::Span<const int32_t> seq_lens,
                    absl::Span<const int32_t> positions, int encoder_len);
  void Zero();

  int64_t bytes() const;
  void AddTo(Fingerprint& fingerprint) const;

 private:
  explicit StepMemory(c10::Device device) : device_(device) {}
  // Plans and allocates the buffers, and sets slots_, arrays_ and draft_arrays_ to them.
  absl::Status Cut(const StepMemoryShape& shape);

  c10::Device device_;
  at::Tensor bytes_;
  StepBuffers buffers_;
  SlotState slots_;
  StepArrays arrays_;
  StepArrays draft_arrays_;
  at::Tensor all_logits_;
  std::vector<at::Tensor> logits_;  // entry i: the first i rows
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_MEMORY_H_
