// Converts the log-sum-exp of scores between the common forms: natural or base-2 logarithm,
// [tokens, heads] or [heads, tokens]. F19.
//
//   // FlashInfer's (base 2, [tokens, heads]) into ours (natural):
//   ConvertLse({.from = theirs, .from_base = LogBase::kTwo, .to = ours, .num_tokens = 5, ...});
//
// Ours is natural with [tokens, heads] everywhere. -inf, for a query without keys, stays -inf.
//
// from and to may be the same memory only with equal strides. Thread safety: const data except for
// `to`. No allocation.

#ifndef ATTENTION_MERGE_LSE_FORMAT_H_
#define ATTENTION_MERGE_LSE_FORMAT_H_

#include <cstdint>

#include "attention/merge/merge_states_params.h"

namespace reprise {

enum class LogBase {
  kNatural,
  kTwo,
};

// Factor from a logarithm in base `from` to the logarithm in base `to` of the same number.
constexpr float LogFactor(LogBase from, LogBase to) {
  constexpr float kLog2OfE = 1.4426950408889634f;
  constexpr float kLogOf2 = 0.6931471805599453f;
  if (from == to) return 1.0f;
  return to == LogBase::kTwo ? kLog2OfE : kLogOf2;
}

struct LseConversion {
  LseView from = {};
  LogBase from_base = LogBase::kNatural;
  LseView to = {};
  LogBase to_base = LogBase::kNatural;
  int num_tokens = 0;
  int num_heads = 0;
};

// Strides of [num_tokens, num_heads] and of [num_heads, num_tokens].
constexpr LseView TokensByHeads(float* data, int num_heads) { return {data, num_heads, 1}; }
constexpr LseView HeadsByTokens(float* data, int num_tokens) { return {data, 1, num_tokens}; }

// Runs over host memory; on the device use LaunchConvertLse(),
// attention/merge/merge_states_kernel.h.
inline void ConvertLse(const LseConversion& conversion) {
  const float factor = LogFactor(conversion.from_base, conversion.to_base);
  for (int64_t t = 0; t < conversion.num_tokens; ++t) {
    for (int64_t h = 0; h < conversion.num_heads; ++h) {
      const LseView& from = conversion.from;
      const LseView& to = conversion.to;
      to.data[t * to.token_stride + h * to.head_stride] =
          factor * from.data[t * from.token_stride + h * from.head_stride];
    }
  }
}

}  // namespace reprise

#endif  // ATTENTION_MERGE_LSE_FORMAT_H_
