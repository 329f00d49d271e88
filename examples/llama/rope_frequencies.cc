#include "examples/llama/rope_frequencies.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace reprise {
namespace {

// One pair of a head's elements, of `num_pairs`, and its plain frequency in radians a token.
struct Pair {
  int index = 0;
  int num_pairs = 0;
  double theta = 0;
  float frequency = 0;
};

// One overload a kind of scaling; each returns the pair's frequency.
float Scale(const DefaultRope&, const Pair& pair) { return pair.frequency; }

float Scale(const LinearRope& rope, const Pair& pair) {
  return pair.frequency / static_cast<float>(rope.factor);
}

float Scale(const Llama3Rope& rope, const Pair& pair) {
  const float frequency = pair.frequency;
  const float factor = static_cast<float>(rope.factor);
  const float low = static_cast<float>(rope.low_freq_factor);
  const float original = static_cast<float>(rope.original_max_seq_len);
  const float wave = static_cast<float>(2 * std::numbers::pi) / frequency;
  if (wave > static_cast<float>(rope.original_max_seq_len / rope.low_freq_factor)) {
    return frequency / factor;
  }
  if (wave < static_cast<float>(rope.original_max_seq_len / rope.high_freq_factor)) {
    return frequency;
  }
  const float kept =
      (original / wave - low) / static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1 - kept) * frequency / factor + kept * frequency;
}

// The pair, as a fraction of one, that turns `num_turns` times within the original length.
double PairOfTurns(const YarnRope& rope, const Pair& pair, double num_turns) {
  const double turns_ratio = rope.original_max_seq_len / (num_turns * 2 * std::numbers::pi);
  return 2 * pair.num_pairs * std::log(turns_ratio) / (2 * std::log(pair.theta));
}

float Scale(const YarnRope& rope, const Pair& pair) {
  double low = PairOfTurns(rope, pair, rope.beta_fast);
  double high = PairOfTurns(rope, pair, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, 2.0 * pair.num_pairs - 1);
  if (low == high) high += 0.001;  // transformers' own way past a division by zero
  const float ramp =
      (static_cast<float>(pair.index) - static_cast<float>(low)) / static_cast<float>(high - low);
  const float kept = 1 - std::clamp(ramp, 0.0f, 1.0f);
  const float plain = 1.0f / pair.frequency;
  const float interpolated = 1.0f / (static_cast<float>(rope.factor) * plain);
  return interpolated * (1 - kept) + pair.frequency * kept;
}

}  // namespace

std::vector<float> RopeFrequencies(const RopeConfig& config, int head_dim) {
  CHECK_GT(head_dim, 0);
  CHECK_EQ(head_dim % 2, 0);
  const float theta = static_cast<float>(config.theta);
  std::vector<float> frequencies;
  for (int i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    const Pair pair = {.index = i / 2,
                       .num_pairs = head_dim / 2,
                       .theta = config.theta,
                       .frequency = 1.0f / std::pow(theta, exponent)};
    frequencies.push_back(
        std::visit([&](const auto& scaling) { return Scale(scaling, pair); }, config.scaling));
  }
  return frequencies;
}

double RopeAttentionFactor(const RopeConfig& config) {
  const YarnRope* const yarn = std::get_if<YarnRope>(&config.scaling);
  return yarn != nullptr ? yarn->attention_factor : 1;
}

}  // namespace reprise
