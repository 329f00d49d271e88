// Parameters that change a sequence's logits before its next token is chosen, or that select what
// is reported about the choice, and the per-slot state that they need. Does not depend on LibTorch.
//
// Definitions, as in vLLM and Hugging Face. They apply to each logit x of token v in this order:
//
//   1. repetition_penalty r, if v is in the prompt or the output:   x > 0 ? x / r : x * r
//   2. frequency_penalty f, presence_penalty p, if v is n > 0 times in the output:   x - f n - p
//   3. logit bias b of v:                                           x + b
//   4. allowed tokens:                                              x, or -inf if v is not allowed
//
// Each step is computed in float32, with one rounding to the dtype of the logits at the end. vLLM
// and Hugging Face both apply 1, 2 and 4 in this order. vLLM adds biases before penalties, which
// differs only together with a repetition penalty. Temperature, top_k, top_p and min_p follow all
// of these steps (runner/sampling/sampling_params.h).

#ifndef REPRISE_RUNNER_SAMPLING_LOGITS_PARAMS_H_
#define REPRISE_RUNNER_SAMPLING_LOGITS_PARAMS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace reprise {

// Maximum number of most probable tokens whose log-probabilities are reported in addition to the
// chosen token, as in vLLM.
inline constexpr int kMaxTopLogProbs = 20;

// Parameters of a sequence. The default changes nothing and costs nothing: rows with the default
// and without a mask are not read.
struct LogitsParams {
  float repetition_penalty = 1.0f;  // > 0; 1: no penalty
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t num_biases = 0;  // length of the sequence's bias list
  // Which log-probabilities to report for a sampled token. -1: none. 0: only the sampled token. n:
  // also the n most probable tokens; at most kMaxTopLogProbs.
  int32_t num_log_probs = -1;
  // The same for tokens that the caller knows: prompt tokens and forced tokens.
  int32_t num_known_log_probs = -1;

  friend bool operator==(const LogitsParams&, const LogitsParams&) = default;
};

struct LogitBias {
  int32_t token = 0;
  float bias = 0.0f;

  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

// Checks a request; the device does not check it again. Errors: InvalidArgument, naming the
// parameter, in these cases:
// - a penalty is not finite, or repetition_penalty is not positive;
// - num_log_probs or num_known_log_probs is outside [-1, kMaxTopLogProbs];
// - num_biases is not biases.size();
// - a bias has a token outside [0, vocab_size) or a token that is listed twice;
// - a bias is NaN or +inf (-inf bans the token).
absl::Status CheckLogitsParams(const LogitsParams& params, absl::Span<const LogitBias> biases,
                               int vocab_size);

constexpr bool HasPenalties(const LogitsParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

// The number of occurrences of a token, in 16 bits: the counts of 256 slots and a vocabulary of
// 128256 take 66 MB, half of the memory for int32. (A list of each sequence's tokens would be as
// large at 128k tokens, and every step would have to count it.) The highest bit is set if the token
// is in the prompt. The other bits count the token in the output; 32767 means 32767 or more.
using TokenCount = uint16_t;

inline constexpr TokenCount kInPrompt = 0x8000;
inline constexpr TokenCount kMaxOutputCount = 0x7fff;

constexpr int OutputCount(TokenCount count) { return count & kMaxOutputCount; }
constexpr TokenCount WithOutputToken(TokenCount count) {
  return OutputCount(count) < kMaxOutputCount ? static_cast<TokenCount>(count + 1) : count;
}
constexpr TokenCount WithPromptToken(TokenCount count) {
  return static_cast<TokenCount>(count | kInPrompt);
}

// Elements between rows of the counts: rows are aligned to 16 bytes.
constexpr int64_t TokenCountStride(int64_t vocab_size) { return (vocab_size + 7) / 8 * 8; }

// Number of words in a mask of allowed tokens, in xgrammar's layout: bit i of word w is token 32 w
// + i; 1 means allowed.
constexpr int64_t MaskWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

// The state of each slot in device memory: views of arrays that the caller owns. Written by
// runner/sampling/logits_state.h. Initially, `params` must hold the default LogitsParams, which is
// not all zeros; the other arrays may hold any values.
struct LogitsSlots {
  LogitsParams* params = nullptr;  // [num_slots]
  // [num_slots, max_biases] The first num_biases of each slot are valid. Null if max_biases is 0.
  LogitBias* biases = nullptr;
  // [num_slots, TokenCountStride(vocab_size)], aligned to 16 bytes. A slot's row is valid if the
  // slot has penalties. If null, the penalties of all slots are ignored.
  TokenCount* counts = nullptr;
  int num_slots = 0;
  int max_biases = 0;
  int vocab_size = 0;

  constexpr TokenCount* counts_of(int32_t slot) const {
    return counts + slot * TokenCountStride(vocab_size);
  }
  constexpr LogitBias* biases_of(int32_t slot) const {
    return biases + static_cast<int64_t>(slot) * max_biases;
  }
  constexpr bool has(int32_t slot) const { return slot >= 0 && slot < num_slots; }
  constexpr bool counts_tokens(const LogitsParams& slot_params) const {
    return counts != nullptr && HasPenalties(slot_params);
  }
  // Returns the length of a slot's list, limited to [0, max_biases].
  constexpr int num_biases(const LogitsParams& slot_params) const {
    const int count = slot_params.num_biases < max_biases ? slot_params.num_biases : max_biases;
    return count > 0 ? count : 0;
  }
};

// Errors: InvalidArgument, naming the field: negative sizes, an empty vocabulary, a null array,
// counts that are not aligned.
absl::Status CheckLogitsSlots(const LogitsSlots& slots);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_PARAMS_H_
