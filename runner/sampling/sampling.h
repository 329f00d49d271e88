// Chooses each row's next token from its logits by the SamplingParams of its slot
// (runner/sampling/sampling_params.h, which defines the choice exactly).
//
//   Sample({.logits = logits,
//           .slots = slots.sampling_slots(),
//           .sample_slot = arrays.sample_slot,
//           .out = tokens,
//           .features = SamplingFeatures::kGreedy});
//
// The token (0 for kNanRow) becomes the slot's last_token, which the refill of the next step reads,
// and sample_index increases by 1. The host reads `out` later.
//
// With sample_offset, Sample() only draws: row r uses sample_index + sample_offset[r], the slots do
// not change, and a slot may have several rows. Draft verification uses this to compute the tokens
// that the sequence would choose at its next positions (attention/speculation/accept_drafts.h).
//
// The CPU and the GPU choose the same tokens: no result depends on an order of summation or on a
// mathematical library.
//
// Thread safety: none; one caller at a time for the same slots. On a GPU, one launch on the current
// stream, which does not allocate or synchronise, so the call may be captured. Cost on a GPU:
// greedy rows read their logits once; other rows 2 to 25 times, mostly from cache.

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
  // sample, and its token is kNotSampled. Without sample_offset, slots must be distinct.
  const int32_t* sample_slot = nullptr;
  // [num_rows] at least 0. Null: the slots advance.
  const int32_t* sample_offset = nullptr;
  // [num_rows] tokens, kNotSampled or kNanRow. On a GPU, it may be mapped host memory.
  int32_t* out = nullptr;
  // kGreedy: every row is greedy, and the slots' parameters are ignored.
  SamplingFeatures features = SamplingFeatures::kGeneral;
};

// Errors: InvalidArgument, naming the argument.
absl::Status Sample(const SampleArgs& args);

// The CPU form, with pointers. REQUIRES: the arguments pass the checks of Sample().
void SampleOnHost(const SamplingArgs& args);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_SAMPLING_H_
