// How fast each pair of a head's elements turns with the position: the inverse frequencies of RoPE,
// plain or scaled.
//
//   std::vector<float> frequencies = RopeFrequencies(config.rope, config.head_dim);
//   angle = position * frequencies[i];   // turns elements i and head_dim / 2 + i
//
// Thread safety: pure functions.

#ifndef EXAMPLES_LLAMA_ROPE_FREQUENCIES_H_
#define EXAMPLES_LLAMA_ROPE_FREQUENCIES_H_

#include <variant>
#include <vector>

namespace reprise {

// Each frequency is theta^(-2i / head_dim), as in the RoFormer paper (arXiv 2104.09864).
struct DefaultRope {
  friend bool operator==(const DefaultRope&, const DefaultRope&) = default;
};

// All frequencies divided by `factor`, as if positions were (arXiv 2306.15595).
struct LinearRope {
  double factor = 1;  // >= 1
  friend bool operator==(const LinearRope&, const LinearRope&) = default;
};

// Long waves divided by `factor`, short waves kept, blended in between: Llama 3.1. A wave of w
// tokens is
//   long   if w > original_max_seq_len / low_freq_factor
//   short  if w < original_max_seq_len / high_freq_factor
// and otherwise a blend with the weight (original_max_seq_len / w - low) / (high - low) for the one
// that is kept.
struct Llama3Rope {
  double factor = 8;  // >= 1
  double low_freq_factor = 1;
  double high_freq_factor = 4;  // > low_freq_factor
  int original_max_seq_len = 8192;
  friend bool operator==(const Llama3Rope&, const Llama3Rope&) = default;
};

// YaRN (arXiv 2309.00071): of the pairs, in the order of their frequencies, the first that turn
// more than beta_fast times within the original length keep their frequency, those that turn less
// than beta_slow times have it divided by `factor`, and there is a linear ramp in between. Cosines
// and sines are multiplied by attention_factor.
struct YarnRope {
  double factor = 1;            // >= 1
  double attention_factor = 1;  // > 0
  double beta_fast = 32;
  double beta_slow = 1;  // > 0, <= beta_fast
  int original_max_seq_len = 4096;
  // Whether the ends of the ramp are whole pairs.
  bool truncate = true;
  friend bool operator==(const YarnRope&, const YarnRope&) = default;
};

struct RopeConfig {
  double theta = 10000;  // >= 1; YaRN: > 1
  std::variant<DefaultRope, LinearRope, Llama3Rope, YarnRope> scaling = DefaultRope();
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// [head_dim / 2], computed in float32 step by step as Hugging Face transformers 5.17 does, since
// its results are what checkpoints are compared with: they agree to a few units in the last place.
// REQUIRES: head_dim is even and positive.
std::vector<float> RopeFrequencies(const RopeConfig& config, int head_dim);

// What cosines and sines are multiplied by: 1 but for YaRN.
double RopeAttentionFactor(const RopeConfig& config);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_ROPE_FREQUENCIES_H_
