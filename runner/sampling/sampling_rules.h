// The arithmetic of sampling. The host and the device compute bitwise identical results.
//
// Choices are made on integers: order keys of logits; probabilities in fixed point ("masses"),
// whose sums do not depend on the order of summation; and packed (score, token) pairs, of which the
// largest wins. The functions below convert floats. They use single operations of IEEE 754 and no
// mathematical library. Files that include this header must be compiled without contraction of
// products and sums (host: -ffp-contract=off, nvcc: -fmad=false).

#ifndef REPRISE_RUNNER_SAMPLING_SAMPLING_RULES_H_
#define REPRISE_RUNNER_SAMPLING_SAMPLING_RULES_H_

#include <bit>
#include <cstdint>

#include "reprise/base/philox.h"
#include "reprise/runner/sampling/sampling_params.h"

namespace reprise {

// Returns a key that orders floats as integers: -inf < ... < -0 = +0 < ... < +inf. The key of NaN
// is 0, below all others.
constexpr uint32_t OrderKey(float value) {
  if (value != value) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);  // -0 + 0 is +0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// Packs a choice so that the best choice is the largest: the larger key wins, and the lower token
// among equal keys.
constexpr uint64_t PackChoice(uint32_t key, int32_t token) {
  return (static_cast<uint64_t>(key) << 32) | (0xffffffffu - static_cast<uint32_t>(token));
}
constexpr int32_t TokenOf(uint64_t choice) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(choice));
}

// The packed choice before any token has been visited: token 0 with key 0, the key of NaN.
inline constexpr uint64_t kNoChoice = PackChoice(0, 0);

constexpr uint32_t KeyOf(uint64_t choice) { return static_cast<uint32_t>(choice >> 32); }

// Whether the largest logit of a row can be chosen, which means that it is above -inf.
inline constexpr uint32_t kLowestKey = 0x007fffffu;  // key of -inf
constexpr bool CanBeChosen(uint64_t largest) { return KeyOf(largest) > kLowestKey; }

// Returns the natural logarithm of a positive, normal, finite x, to about one unit in the last
// place. Uses the polynomial of Cephes' logf (Moshier) on [sqrt(1/2), sqrt(2)].
constexpr float LogOf(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  int exponent = static_cast<int>(bits >> 23) - 126;  // x = m 2^exponent, m in [1/2, 1)
  float m = std::bit_cast<float>((bits & 0x007fffffu) | 0x3f000000u);
  if (m < 0.70710678f) {
    --exponent;
    m = m + m;
  }
  const float f = m - 1.0f;
  const float z = f * f;
  float y = 7.0376836292e-2f;
  y = y * f - 1.1514610310e-1f;
  y = y * f + 1.1676998740e-1f;
  y = y * f - 1.2420140846e-1f;
  y = y * f + 1.4249322787e-1f;
  y = y * f - 1.6668057665e-1f;
  y = y * f + 2.0000714765e-1f;
  y = y * f - 2.4999993993e-1f;
  y = y * f + 3.3333331174e-1f;
  y = y * f * z;
  const float e = static_cast<float>(exponent);
  y = y + e * -2.12194440e-4f;
  y = y - 0.5f * z;
  return (f + y) + e * 0.693359375f;  // log(2) = 0.693359375 - 2.1219444e-4
}

// Returns Gumbel's variate for 32 uniform bits: -log(-log(u)), u = 1 - (bits + 1/2) / 2^32. -log(u)
// is computed with Kahan's log1p, so that the large variates, which win, keep full precision.
constexpr float GumbelOf(uint32_t bits) {
  float w = static_cast<float>(bits) * 0x1p-32f + 0x1p-33f;
  if (w > 0x1.fffffep-1f) w = 0x1.fffffep-1f;
  const float u = 1.0f - w;
  const float exponential = u == 1.0f ? w : LogOf(u) * (w / (u - 1.0f));
  return -LogOf(exponential);
}

// Bounds of all variates: -log(2^-33) = 22.9, -log(-log(2^-24)) = -2.81.
inline constexpr float kMaxGumbel = 23.0f;
inline constexpr float kMinGumbel = -2.9f;

// Returns (logit - max_logit) / temperature, which is never positive. The distance of the largest
// logit is 0, even if it is infinite.
constexpr float ScaledDistance(float logit, float max_logit, float temperature) {
  return logit == max_logit ? 0.0f : (logit - max_logit) / temperature;
}

// Returns exp(distance) in units of 2^-40, rounded down; 0 below 2^-40. Uses the polynomial of
// Cephes' expf.
constexpr uint64_t MassOf(float distance) {
  if (!(distance > -30.0f)) return 0;
  const int n = static_cast<int>(distance * 1.44269504f - 0.5f);  // nearest: towards zero is up
  const float fn = static_cast<float>(n);
  const float r = (distance - fn * 0.693359375f) - fn * -2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  // n >= -44: the power of two is a normal float.
  const float power = std::bit_cast<float>(static_cast<uint32_t>(n + 40 + 127) << 23);
  return static_cast<uint64_t>(y * power);
}

// Returns the mass that top_p requires out of `total`; at least 1.
constexpr uint64_t TopPTarget(float top_p, uint64_t total) {
  const double wanted = static_cast<double>(top_p) * static_cast<double>(total);
  if (!(wanted > 1.0)) return 1;
  const uint64_t target = static_cast<uint64_t>(wanted);
  return static_cast<double>(target) < wanted ? target + 1 : target;
}

// Returns the smallest mass of a token that min_p keeps. The mass of the largest logit is 2^40. The
// result is in [1, 2^40], so that the largest logit is kept for any min_p.
constexpr uint64_t MinPTarget(float min_p) {
  return min_p < 1.0f ? TopPTarget(min_p, uint64_t{1} << 40) : uint64_t{1} << 40;
}

// Return which steps of sampling the parameters use.
constexpr bool IsGreedy(const SamplingParams& params) { return !(params.temperature > 0.0f); }
constexpr bool HasTopK(const SamplingParams& params, int64_t vocab_size) {
  return params.top_k > 0 && params.top_k < vocab_size;
}
constexpr bool HasTopP(const SamplingParams& params) { return params.top_p < 1.0f; }
constexpr bool HasMinP(const SamplingParams& params) { return params.min_p > 0.0f; }

// Returns the smallest mass that min_p keeps, or 0 without min_p. Only tokens that could win the
// draw are tested, so min_p needs no separate pass.
constexpr uint64_t MinMass(const SamplingParams& params) {
  return HasMinP(params) ? MinPTarget(params.min_p) : 0;
}
constexpr bool KeepsMass(uint64_t min_mass, float distance) {
  return min_mass == 0 || MassOf(distance) >= min_mass;
}

// Returns the random bits of tokens 4 * group .. 4 * group + 3.
constexpr PhiloxBlock RandomBitsOf(const SamplingParams& params, int64_t sample_index,
                                   int32_t group) {
  const uint64_t index = static_cast<uint64_t>(sample_index);
  return Philox4x32({{static_cast<uint32_t>(group), 0, static_cast<uint32_t>(index),
                      static_cast<uint32_t>(index >> 32)}},
                    PhiloxKeyOf(params.seed));
}

// Returns the packed choice of a kept token with this distance.
constexpr uint64_t DrawChoice(float distance, uint32_t random_bits, int32_t token) {
  return PackChoice(OrderKey(distance + GumbelOf(random_bits)), token);
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_SAMPLING_RULES_H_
