#include "examples/llama/rope_frequencies.h"

#include <glog/logging.h>

#include <cmath>
#include <numbers>

namespace reprise {
namespace {

// One overload a kind of scaling; each takes and returns a frequency in radians a token.
float Scale(const DefaultRope&, float frequency) { return frequency; }

float Scale(const LinearRope& rope, float frequency) {
  return frequency / static_cast<float>(rope.factor);
}

float Scale(const Llama3Rope& rope, float frequency) {
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

}  // namespace

std::vector<float> RopeFrequencies(const RopeConfig& config, int head_dim) {
  CHECK_GT(head_dim, 0);
  CHECK_EQ(head_dim % 2, 0);
  const float theta = static_cast<float>(config.theta);
  std::vector<float> frequencies;
  for (int i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    const float plain = 1.0f / std::pow(theta, exponent);
    frequencies.push_back(
        std::visit([&](const auto& scaling) { return Scale(scaling, plain); }, config.scaling));
  }
  return frequencies;
}

}  // namespace reprise
