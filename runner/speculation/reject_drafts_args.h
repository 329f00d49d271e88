// Arguments of LaunchRejectDrafts() (runner/speculation/reject_drafts.h), and its arithmetic, which
// the host and device forms share. Files that include this header must be compiled without
// floating-point contraction (runner/sampling/sampling_rules.h).

#ifndef REPRISE_RUNNER_SPECULATION_REJECT_DRAFTS_ARGS_H_
#define REPRISE_RUNNER_SPECULATION_REJECT_DRAFTS_ARGS_H_

#include <cstdint>

#include "reprise/base/dtype.h"
#include "reprise/base/host_device.h"
#include "reprise/base/philox.h"
#include "reprise/runner/sampling/kept_tokens.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/sampling/sampling_rules.h"
#include "reprise/runner/slots/step_arrays.h"

namespace reprise {

struct RejectDraftsArgs {
  DType dtype = DType::kFloat32;  // dtype of both logits: float32, float16 or bfloat16
  const void* logits = nullptr;   // [first_row + num_rows, vocab_size] logits of the step
  int64_t logits_stride = 0;      // elements between rows
  // [num_draft_rows, vocab_size] logits that drafts were sampled from; arrays.draft_logits holds
  // their rows. Null: no draft was sampled.
  const void* draft_logits = nullptr;
  int64_t draft_logits_stride = 0;
  int num_draft_rows = 0;
  int vocab_size = 0;
  SamplingSlots slots;  // params and sample_index are read
  // Reads sample_slot, sample_offset, logits_indices and token_ids; with draft_logits, also
  // draft_logits.
  StepArrays arrays;
  // rows [first_row, first_row + num_rows) of `logits` may be followed by drafts
  int first_row = 0;
  int num_rows = 0;
  // [first_row + num_rows] tokens that Sample() returned; updated in place
  int32_t* chosen = nullptr;
};

// A position whose draft is accepted or rejected.
struct DraftPlace {
  int32_t slot = -1;  // -1: no decision is needed
  int32_t draft = 0;
  int32_t draft_row = -1;  // row of draft_logits; -1: the draft was not sampled
  int64_t sample_index = 0;
};

REPRISE_HOST_DEVICE constexpr DraftPlace DraftPlaceOf(const RejectDraftsArgs& args,
                                                      int logits_row) {
  DraftPlace place;
  const int32_t slot = args.arrays.sample_slot[logits_row];
  if (slot < 0 || slot >= args.slots.num_slots || args.chosen[logits_row] < 0) return place;
  if (IsGreedy(args.slots.params[slot])) return place;
  const int64_t token = int64_t{args.arrays.logits_indices[logits_row]} + 1;
  if (token < 1 || token >= args.arrays.max_tokens) return place;
  place.draft = args.arrays.token_ids[token];
  if (place.draft < 0 || place.draft >= args.vocab_size) return place;
  place.slot = slot;
  place.sample_index = args.slots.sample_index[slot] + args.arrays.sample_offset[logits_row];
  if (args.draft_logits == nullptr) return place;
  const int32_t row = args.arrays.draft_logits[token];
  if (row >= 0 && row < args.num_draft_rows) place.draft_row = row;
  return place;
}

// The second word of Philox's counter.
inline constexpr uint32_t kTokenNumbers = 1;
inline constexpr uint32_t kAcceptanceNumbers = 2;

constexpr PhiloxBlock RejectionBits(uint64_t seed, int64_t sample_index, uint32_t numbers,
                                    uint32_t group) {
  const uint64_t index = static_cast<uint64_t>(sample_index);
  return Philox4x32(
      {{group, numbers, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)}},
      PhiloxKeyOf(seed));
}

// Returns whether to accept a draft with probability p in the sequence's distribution and q in the
// drafter's.
constexpr bool AcceptsDraft(uint64_t seed, int64_t sample_index, double p, double q) {
  const PhiloxBlock bits = RejectionBits(seed, sample_index, kAcceptanceNumbers, 0);
  const uint64_t word = static_cast<uint64_t>(bits.word[0]) << 32 | bits.word[1];
  const double uniform = static_cast<double>(word >> 11) * 0x1p-53;  // [0, 1)
  return uniform * q < p;
}

// Computes the logarithm of max(0, p - q), the weight of a token. Returns false if the weight is 0
// or too small.
constexpr bool ResidualOf(double p, double q, float& log_weight) {
  const float weight = static_cast<float>(p - q);
  if (!(weight >= 0x1p-120f)) return false;
  log_weight = LogOf(weight);
  return true;
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_REJECT_DRAFTS_ARGS_H_
