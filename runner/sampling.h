// The last act of a step: each row's next token from its logits, as its slot's SamplingParams say
// (runner/sampling_params.h, which defines the choice to the bit).
//
//   Sample({.logits = logits, .slots = slots, .sample_slot = arrays.sample_slot, .out = tokens,
//           .features = SamplingFeatures::kGreedy});
//
// The token becomes the slot's last_token, which the next step's refill reads, and sample_index
// grows by 1. `out` is what the host reads later.
//
// The CPU's tokens and the GPU's are the same: nothing depends on an order of summation or a
// mathematical library.
//
// Thread safety: none; one caller at a time for the same slots. On a GPU one launch on the current
// stream; nothing is allocated or synchronised: may be captured. Cost: greedy rows read their
// logits once; others up to about ten times, from cache.

#ifndef RUNNER_SAMPLING_H_
#define RUNNER_SAMPLING_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "runner/sampling_features.h"
#include "runner/slot_state.h"

namespace reprise {

struct SampleArgs {
  at::Tensor logits;     // [num_rows, vocab_size] float32, float16 or bfloat16; rows may be strided
  SlotState slots = {};  // on the device of the logits
  // [num_rows] the row's slot; -1, or no slot: the row does not sample, and its token is -1. No
  // slot twice.
  const int32_t* sample_slot = nullptr;
  int32_t* out = nullptr;  // [num_rows]; on a GPU it may be mapped host memory
  // kGreedy: every row is greedy, whatever its slot says.
  SamplingFeatures features = SamplingFeatures::kGeneral;
};

// Errors: InvalidArgument, naming the argument.
absl::Status Sample(const SampleArgs& args);

}  // namespace reprise

#endif  // RUNNER_SAMPLING_H_
