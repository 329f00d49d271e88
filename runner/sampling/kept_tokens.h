// The tokens of a row of logits that temperature, top_k, top_p and min_p keep
// (runner/sampling/sampling_params.h), and their probabilities. This is the host part of Sample()
// and of RejectDrafts(), and the struct that the device part shares. Does not depend on LibTorch.
//
//   std::vector<float> buffer;
//   const float* logits = FloatRow(dtype, data, row * stride, vocab_size, buffer);
//   const KeptTokens kept = KeptTokensOf(logits, vocab_size, max_logit, params);
//   kept.ProbabilityOf(logits[7]);   // the probability of drawing token 7
//
// The CPU and the GPU compute bitwise identical results. Files that include this header must be
// compiled without contraction (runner/sampling/sampling_rules.h).
//
// Thread safety: value types.

#ifndef REPRISE_RUNNER_SAMPLING_KEPT_TOKENS_H_
#define REPRISE_RUNNER_SAMPLING_KEPT_TOKENS_H_

#include <cstdint>
#include <vector>

#include "reprise/base/dtype.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/sampling/sampling_rules.h"

namespace reprise {

struct KeptTokens {
  float max_logit = 0.0f;
  float temperature = 1.0f;
  uint32_t threshold = 0;  // top_k and top_p keep tokens with order keys >= threshold
  uint64_t min_mass = 0;   // the smallest mass that min_p keeps
  uint64_t total = 0;      // sum of the masses of all kept tokens; at least 2^40

  // Returns the mass of a token, in units of 2^-40 of the most probable token's mass. 0: the token
  // is not kept.
  constexpr uint64_t MassOfLogit(float logit) const {
    const uint32_t key = OrderKey(logit);
    if (key < threshold || key == 0) return 0;
    const uint64_t mass = MassOf(ScaledDistance(logit, max_logit, temperature));
    return mass < min_mass ? 0 : mass;
  }

  constexpr double ProbabilityOf(float logit) const {
    return static_cast<double>(MassOfLogit(logit)) / static_cast<double>(total);
  }
};

// Returns KeptTokens without `total`.
constexpr KeptTokens WithThreshold(uint32_t threshold, float max_logit,
                                   const SamplingParams& params) {
  return {.max_logit = max_logit,
          .temperature = params.temperature,
          .threshold = threshold,
          .min_mass = MinMass(params)};
}

// Returns `size` logits beginning at element `first` as floats: a pointer into `logits` for
// float32, otherwise the converted logits in `buffer`. `dtype`: float32, float16 or bfloat16.
const float* FloatRow(DType dtype, const void* logits, int64_t first, int size,
                      std::vector<float>& buffer);

// Returns the token of the largest logit (the lowest token among equals), or kNanRow if no logit is
// above -inf.
int32_t LargestToken(const float* logits, int vocab_size);

// Returns a threshold: top_k and top_p keep the tokens whose order keys are at least this, except
// NaN. REQUIRES: params.temperature > 0, and `max_logit` is the logit of LargestToken().
uint32_t KeptThreshold(const float* logits, int vocab_size, float max_logit,
                       const SamplingParams& params);

// Draws from the kept tokens among `size` logits, whose first one belongs to first_token. Returns
// the best packed draw, or kNoChoice if no kept token can win. Does not read kept.total.
uint64_t DrawKept(const float* logits, int size, int32_t first_token, const KeptTokens& kept,
                  const SamplingParams& params, int64_t sample_index);

// REQUIRES: those of KeptThreshold().
KeptTokens KeptTokensOf(const float* logits, int vocab_size, float max_logit,
                        const SamplingParams& params);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_KEPT_TOKENS_H_
