#include "reprise/runner/sampling/kept_tokens.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "reprise/base/element_access.h"

namespace reprise {
namespace {

struct Candidate {
  uint32_t key;
  uint64_t mass;
};

// Returns the largest threshold t for which the masses of the candidates with keys >= t reach
// `target`. REQUIRES: the sum of all masses reaches `target`.
uint32_t LargestThreshold(std::vector<Candidate>& candidates, uint64_t target) {
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.key > b.key; });
  uint64_t sum = 0;
  for (const Candidate& candidate : candidates) {
    sum += candidate.mass;
    if (sum >= target) return candidate.key;
  }
  return 0;
}

}  // namespace

const float* FloatRow(DType dtype, const void* logits, int64_t first, int size,
                      std::vector<float>& buffer) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(logits) + first;
  buffer.resize(size);
  const uint16_t* bits = static_cast<const uint16_t*>(logits) + first;
  if (dtype == DType::kBFloat16) {
    std::transform(bits, bits + size, buffer.begin(), BFloat16BitsToFloat);
  } else {
    std::transform(bits, bits + size, buffer.begin(), HalfBitsToFloat);
  }
  return buffer.data();
}

int32_t LargestToken(const float* logits, int vocab_size) {
  int32_t best = kNanRow;
  float best_logit = -std::numeric_limits<float>::infinity();
  for (int32_t token = 0; token < vocab_size; ++token) {
    if (logits[token] > best_logit) {
      best = token;
      best_logit = logits[token];
    }
  }
  return best;
}

uint32_t KeptThreshold(const float* logits, int vocab_size, float max_logit,
                       const SamplingParams& params) {
  uint32_t threshold = 0;
  if (HasTopK(params, vocab_size)) {
    std::vector<uint32_t> keys(vocab_size);
    std::transform(logits, logits + vocab_size, keys.begin(), OrderKey);
    std::nth_element(keys.begin(), keys.begin() + params.top_k - 1, keys.end(),
                     std::greater<uint32_t>());
    threshold = keys[params.top_k - 1];
  }
  if (!HasTopP(params)) return threshold;

  std::vector<Candidate> candidates;
  uint64_t total = 0;
  for (int token = 0; token < vocab_size; ++token) {
    const uint32_t key = OrderKey(logits[token]);
    if (key < threshold || key == 0) continue;
    const uint64_t mass = MassOf(ScaledDistance(logits[token], max_logit, params.temperature));
    if (mass == 0) continue;
    candidates.push_back({key, mass});
    total += mass;
  }
  return std::max(threshold, LargestThreshold(candidates, TopPTarget(params.top_p, total)));
}

uint64_t DrawKept(const float* logits, int size, int32_t first_token, const KeptTokens& kept,
                  const SamplingParams& params, int64_t sample_index) {
  uint64_t best = kNoChoice;
  // The token of the largest logit is kept, and its score is at least kMinGumbel.
  float best_score = kMinGumbel;
  PhiloxBlock bits;
  int bits_group = -1;
  for (int i = 0; i < size; ++i) {
    const uint32_t key = OrderKey(logits[i]);
    if (key < kept.threshold || key == 0) continue;
    const float distance = ScaledDistance(logits[i], kept.max_logit, kept.temperature);
    if (distance + kMaxGumbel < best_score) continue;  // cannot win
    if (!KeepsMass(kept.min_mass, distance)) continue;
    const int32_t token = first_token + i;
    if (token / 4 != bits_group) {
      bits_group = token / 4;
      bits = RandomBitsOf(params, sample_index, bits_group);
    }
    const uint64_t choice = DrawChoice(distance, bits.word[token % 4], token);
    if (choice > best) {
      best = choice;
      best_score = std::max(best_score, distance + GumbelOf(bits.word[token % 4]));
    }
  }
  return best;
}

KeptTokens KeptTokensOf(const float* logits, int vocab_size, float max_logit,
                        const SamplingParams& params) {
  KeptTokens kept =
      WithThreshold(KeptThreshold(logits, vocab_size, max_logit, params), max_logit, params);
  for (int token = 0; token < vocab_size; ++token) kept.total += kept.MassOfLogit(logits[token]);
  return kept;
}

}  // namespace reprise
