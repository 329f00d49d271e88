// What changes a sequence's logits before its next token is chosen, and what is reported about the
// choice: parameters, and the state of slots that they need. No LibTorch.
//
// Definitions, as in vLLM and Hugging Face. They apply to each logit x of token v in this order:
//
//   1. repetition_penalty r, if v is in the prompt or the output:   x > 0 ? x / r : x * r
//   2. frequency_penalty f, presence_penalty p, if v is n > 0 times in the output:   x - f n - p
//   3. logit bias b of v:                                           x + b
//   4. allowed tokens:                                              x, or -inf if v is not allowed
//
// in float32, with one rounding to the type of the logits at the end. The order of 1, 2 and 4 is
// that of both systems; vLLM adds biases before penalties, which differs only together with a
// repetition penalty. Temperature, top_k, top_p and min_p come after all of these
// (runner/sampling/sampling_params.h).

#ifndef REPRISE_RUNNER_SAMPLING_LOGITS_PARAMS_H_
#define REPRISE_RUNNER_SAMPLING_LOGITS_PARAMS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace reprise {

// The most tokens whose log-probabilities are reported besides that of the chosen one, as in vLLM.
inline constexpr int kMaxTopLogProbs = 20;

// Of a sequence. The default changes nothing, and costs nothing: such rows are not read.
struct LogitsParams {
  float repetition_penalty = 1.0f;  // > 0; 1: none
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t num_biases = 0;  // of its list
  // Of chosen tokens. -1: no log-probabilities; 0: of the token; n: also of the n most probable
  // tokens, at most kMaxTopLogProbs.
  int32_t num_log_probs = -1;
  // The same of tokens that the caller knows: those of a prompt, or forced ones.
  int32_t num_known_log_probs = -1;

  friend bool operator==(const LogitsParams&, const LogitsParams&) = default;
};

struct LogitBias {
  int32_t token = 0;
  float bias = 0.0f;

  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

// What a request must satisfy; the device does not check it again. Errors: InvalidArgument naming
// the parameter: a penalty that is not finite, a repetition_penalty that is not positive,
// num_log_probs or num_known_log_probs outside [-1, kMaxTopLogProbs], a num_biases that is not biases.size().
// Of a bias: a token outside [0, vocab_size) or listed twice, a value that is NaN or +inf (-inf bans
// the token).
absl::Status CheckLogitsParams(const LogitsParams& params, absl::Span<const LogitBias> biases,
                               int vocab_size);

constexpr bool HasPenalties(const LogitsParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

// How often a token has occurred: 16 bits a token, so that counts of 256 slots and a vocabulary of
// 128256 are 66 MB, half of what int32 takes. (A list of each sequence's tokens would be as large
// at 128k tokens, and every step would have to count it.) The highest bit says that the token is in
// the prompt, the others count it in the output; 32767 means that often or more.
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

// From row to row of the counts: rows begin at multiples of 16 bytes.
constexpr int64_t TokenCountStride(int64_t vocab_size) { return (vocab_size + 7) / 8 * 8; }

// Words of a mask of allowed tokens in xgrammar's layout: bit i of word w is token 32 w + i, 1 =
// allowed.
constexpr int64_t MaskWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

// The state of each slot, which the device keeps: views of arrays that the caller owns. Written by
// runner/sampling/logits_state.h. The default LogitsParams, not zeros, must be there at the
// beginning; the other arrays may hold anything.
struct LogitsSlots {
  LogitsParams* params = nullptr;  // [num_slots]
  // [num_slots, max_biases] of each slot the first num_biases are live. Absent with max_biases 0.
  LogitBias* biases = nullptr;
  // [num_slots, TokenCountStride(vocab_size)] at a multiple of 16 bytes. A slot's row is live if it
  // has penalties. May be absent: then no slot has any, whatever its parameters say.
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
  // The length of a slot's list, whatever its parameters say.
  constexpr int num_biases(const LogitsParams& slot_params) const {
    const int count = slot_params.num_biases < max_biases ? slot_params.num_biases : max_biases;
    return count > 0 ? count : 0;
  }
};

// Errors: InvalidArgument naming the field: sizes below 0, no vocabulary, an absent array, counts
// that are not aligned.
absl::Status CheckLogitsSlots(const LogitsSlots& slots);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_PARAMS_H_
