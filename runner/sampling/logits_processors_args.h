// Arguments of logits processors, and what they do to a row and to a logit; shared by the host and
// device forms (runner/sampling/logits_processors.h), which compute the same bits: files that include
// this one must be compiled without contraction of products and sums (host: -ffp-contract=off, nvcc:
// -fmad=false).

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
  int64_t logits_stride = 0;      // elements, from row to row
  int num_rows = 0;
  const int32_t* sample_slot = nullptr;  // [num_rows] as for Sample()
  LogitsSlots slots = {};

  // Masks of allowed tokens, in xgrammar's layout: bit i of word w is token 32 w + i, 1 = allowed;
  // bits beyond the vocabulary are ignored. May be mapped host memory: each word is read once.
  const int32_t* allowed_tokens = nullptr;  // [num_masks, MaskWords(vocab_size)]; absent: none
  int64_t mask_stride = 0;                  // words, from mask to mask
  int num_masks = 0;
  // [num_rows] the mask of each row; outside [0, num_masks), such as -1: all tokens are allowed.
  // Absent: row r has mask r.
  const int32_t* mask_of_row = nullptr;
};

// What is to be done to a row.
struct RowProcessors {
  LogitsParams params;
  const TokenCount* counts = nullptr;  // [vocab_size]; null: no penalties
  const LogitBias* biases = nullptr;   // [num_biases] of a token that occurs twice, the last counts
  int num_biases = 0;
  const int32_t* mask = nullptr;  // [MaskWords(vocab_size)]; null: all tokens are allowed

  // Without any, the row's logits are neither read nor written.
  constexpr bool has_any() const { return counts != nullptr || num_biases > 0 || mask != nullptr; }
};

// `mask`: the row's entry of mask_of_row. Rows that do not sample are left alone.
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

// The new logit of an allowed token with a count or a bias; the caller rounds it. A NaN stays what it
// is, and is not written. What would become a NaN, such as +inf with a bias of -inf, is banned.
constexpr float ProcessedLogit(float logit, const LogitsParams& params, TokenCount count,
                               float bias) {
  const float x = WithPenalties(logit, params, count) + bias;
  return x == x ? x : kBannedLogit;
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_PROCESSORS_ARGS_H_
