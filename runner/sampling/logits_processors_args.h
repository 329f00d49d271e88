// Arguments of logits processors and their arithmetic for a row and a logit, shared by the host and
// device forms (runner/sampling/logits_processors.h). The forms compute bitwise identical results.
// Files that include this header must be compiled without contraction of products and sums (host:
// -ffp-contract=off, nvcc: -fmad=false).

#ifndef REPRISE_RUNNER_SAMPLING_LOGITS_PROCESSORS_ARGS_H_
#define REPRISE_RUNNER_SAMPLING_LOGITS_PROCESSORS_ARGS_H_

#include <cstdint>
#include <limits>

#include "reprise/base/dtype.h"
#include "reprise/runner/sampling/logits_params.h"

namespace reprise {

struct LogitsProcessorsArgs {
  DType dtype = DType::kFloat32;  // float32, float16 or bfloat16
  void* logits = nullptr;         // [num_rows, slots.vocab_size] changed in place
  int64_t logits_stride = 0;      // elements between rows
  int num_rows = 0;
  const int32_t* sample_slot = nullptr;  // [num_rows] as for Sample()
  LogitsSlots slots = {};

  // Masks of allowed tokens, in xgrammar's layout: bit i of word w is token 32 w + i; 1 means
  // allowed; bits beyond the vocabulary are ignored. May be mapped host memory: each word is read
  // once.
  const int32_t* allowed_tokens = nullptr;  // [num_masks, MaskWords(vocab_size)]; null: no masks
  int64_t mask_stride = 0;                  // words between masks
  int num_masks = 0;
  // [num_rows] The mask of each row. Values outside [0, num_masks), such as -1, allow all tokens.
  // If null, row r has mask r.
  const int32_t* mask_of_row = nullptr;
};

// The processing of a row.
struct RowProcessors {
  LogitsParams params;
  const TokenCount* counts = nullptr;  // [vocab_size]; null: no penalties
  const LogitBias* biases = nullptr;   // [num_biases]; the last entry of a token counts
  int num_biases = 0;
  const int32_t* mask = nullptr;  // [MaskWords(vocab_size)]; null: all tokens are allowed

  // Whether any processing applies. Otherwise, the row's logits are neither read nor written.
  constexpr bool has_any() const { return counts != nullptr || num_biases > 0 || mask != nullptr; }
};

// `mask`: the row's entry of mask_of_row. Rows that do not sample get no processing.
constexpr RowProcessors RowProcessorsOf(const LogitsProcessorsArgs& args, int row, int32_t mask) {
  RowProcessors processors;
  const int32_t slot = args.sample_slot[row];
  if (!args.slots.has(slot)) return processors;
  processors.params = args.slots.params[slot];
  if (args.slots.counts_tokens(processors.params)) processors.counts = args.slots.counts_of(slot);
  processors.num_biases = args.slots.num_biases(processors.params);
  if (processors.num_biases > 0) processors.biases = args.slots.biases_of(slot);
  if (args.allowed_tokens != nullptr && mask >= 0 && mask < args.num_masks) {
    processors.mask = args.allowed_tokens + mask * args.mask_stride;
  }
  return processors;
}

constexpr int32_t MaskOfRow(const LogitsProcessorsArgs& args, int row) {
  return args.mask_of_row != nullptr ? args.mask_of_row[row] : row;
}

constexpr bool IsAllowed(const int32_t* mask, int64_t token) {
  return mask == nullptr || ((static_cast<uint32_t>(mask[token / 32]) >> (token % 32)) & 1) != 0;
}

inline constexpr float kBannedLogit = -std::numeric_limits<float>::infinity();

constexpr float WithPenalties(float logit, const LogitsParams& params, TokenCount count) {
  if (count == 0) return logit;
  float x = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  if (OutputCount(count) > 0) {
    x = x - params.frequency_penalty * static_cast<float>(OutputCount(count));
    x = x - params.presence_penalty;
  }
  return x;
}

// Returns the new logit of an allowed token with a count or a bias, before the caller rounds it.
// REQUIRES: `logit` is not NaN; NaN logits are not written. A result that would be NaN, such as
// +inf with a bias of -inf, becomes -inf.
constexpr float ProcessedLogit(float logit, const LogitsParams& params, TokenCount count,
                               float bias) {
  const float x = WithPenalties(logit, params, count) + bias;
  return x == x ? x : kBannedLogit;
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_PROCESSORS_ARGS_H_
