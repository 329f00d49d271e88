// The tokens of a row of logits that temperature, top_k, top_p and min_p keep
// (runner/sampling/sampling_params.h), and their probabilities: the host's part of Sample() and of
// RejectDrafts(), and the struct that the device's part shares with it. No LibTorch.
//
//   std::vector<float> buffer;
//   const float* logits = FloatRow(dtype, data, row * stride, vocab_size, buffer);
//   const KeptTokens kept = KeptTokensOf(logits, vocab_size, max_logit, params);
//   kept.ProbabilityOf(logits[7]);   // with which token 7 is drawn
//
// The CPU and the GPU find the same tokens, to the bit: files that include this one must be compiled
// without contraction (runner/sampling/sampling_rules.h).
//
// Thread safety: none needed; plain values.

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
  uint32_t threshold = 0;   // the least order key of top_k and top_p
  uint64_t least_mass = 0;  // of min_p
  uint64_t total = 0;       // of the masses of all kept tokens; at least 2^40

  // In units of 2^-40 of the most probable token's; 0: the token is not kept.
  constexpr uint64_t MassOfLogit(float logit) const {
    const uint32_t key = OrderKey(logit);
    if (key < threshold || key == 0) return 0;
    const uint64_t mass = MassOf(ScaledDistance(logit, max_logit, temperature));
    return mass < least_mass ? 0 : mass;
  }

  constexpr double ProbabilityOf(float logit) const {
    return static_cast<double>(MassOfLogit(logit)) / static_cast<double>(total);
  }
};

// All but `total`.
constexpr KeptTokens WithThreshold(uint32_t threshold, float max_logit,
                                   const SamplingParams& params) {
  return {.max_logit = max_logit,
          .temperature = params.temperature,
          .threshold = threshold,
          .least_mass = LeastMass(params)};
}

// `size` logits from element `first` on as floats: where they are, or converted in `buffer`. `dtype`:
// float32, float16 or bfloat16.
const float* FloatRow(DType dtype, const void* logits, int64_t first, int size,
                      std::vector<float>& buffer);

// The token of the largest logit, the lowest of equals; kNanRow if none is above -inf.
int32_t LargestToken(const float* logits, int vocab_size);

// Tokens whose order keys are at least this are kept by top_k and top_p. REQUIRES: a temperature, and
// `max_logit` is that of LargestToken().
uint32_t KeptThreshold(const float* logits, int vocab_size, float max_logit,
                       const SamplingParams& params);

// The best packed draw of the kept tokens among `size` logits, those of tokens from first_token on;
// kNoChoice if none is kept. kept.total is not read.
uint64_t DrawKept(const float* logits, int size, int32_t first_token, const KeptTokens& kept,
                  const SamplingParams& params, int64_t sample_index);

// REQUIRES: as KeptThreshold().
KeptTokens KeptTokensOf(const float* logits, int vocab_size, float max_logit,
                        const SamplingParams& params);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_KEPT_TOKENS_H_
