// The end of a step: chooses each row's next token from its logits by the SamplingParams of its
// slot (runner/sampling/sampling_params.h, which defines the choice to the bit).
//
//   Sample({.logits = logits,
//           .slots = slots.sampling_slots(),
//           .sample_slot = arrays.sample_slot,
//           .out = tokens,
//           .features = SamplingFeatures::kGreedy});
//
// The token becomes the slot's last_token, which the next step's refill reads, and sample_index is
// increased by 1. The host reads `out` later.
//
// With sample_offset it only draws: the choice of row r is that of sample_index + sample_offset[r],
// the slots stay as they are, and a slot may have several rows. So drafts are verified: what the
// sequence would choose at each of its next places (attention/speculation/accept_drafts.h).
//
// The CPU and the GPU choose the same tokens: nothing depends on an order of summation or on a
// mathematical library.
//
// Thread safety: none; one caller at a time for the same slots. On a GPU one launch on the current
// stream; nothing is allocated or synchronised, so the call may be captured. Cost: greedy rows read
// their logits once; others up to about ten times, from cache.

#ifndef REPRISE_RUNNER_SAMPLING_SAMPLING_H_
#define REPRISE_RUNNER_SAMPLING_SAMPLING_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/runner/sampling/sampling_args.h"
#include "reprise/runner/sampling/sampling_params.h"

namespace reprise {

struct SampleArgs {
  at::Tensor logits;  // [num_rows, vocab_size] float32, float16 or bfloat16; rows may be strided
  SamplingSlots slots = {};  // on the device of the logits
  // [num_rows] the row's slot. A row whose slot is outside [0, num_slots), such as -1, does not
  // sample, and its token is kNotSampled. No slot occurs twice, but with sample_offset.
  const int32_t* sample_slot = nullptr;
  // [num_rows] at least 0; null: the slots advance.
  const int32_t* sample_offset = nullptr;
  // [num_rows] tokens, kNotSampled or kNanRow; on a GPU it may be mapped host memory
  int32_t* out = nullptr;
  // kGreedy: every row is greedy; the parameters of the slots are ignored.
  SamplingFeatures features = SamplingFeatures::kGeneral;
};

// Errors: InvalidArgument, naming the argument.
absl::Status Sample(const SampleArgs& args);

// The CPU form over pointers. REQUIRES: arguments as Sample() checks them.
void SampleOnHost(const SamplingArgs& args);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_SAMPLING_H_
