// Options of operations that a model's configuration sets: the activation, the form of a norm's
// weight, the attention temperature. Does not depend on LibTorch, so that configurations do not
// depend on it.

#ifndef REPRISE_RUNNER_OPS_OP_OPTIONS_H_
#define REPRISE_RUNNER_OPS_OP_OPTIONS_H_

#include <cstdint>

namespace reprise {

// The activation of a gated feed-forward: GateMul() of runner/ops/elementwise.h.
enum class Activation : int8_t {
  kSilu,      // x / (1 + exp(-x)): the Llama family
  kGeluTanh,  // the tanh approximation of GELU (Hendrycks and Gimpel, 2016): Gemma
  // gpt-oss: x / (1 + exp(-1.702 x)) with x = min(gate, 7), times 1 + clamp(up, -7, 7)
  kClampedSwiglu,
};

// The form of GELU without a gate: Gelu() of runner/ops/elementwise.h.
enum class GeluForm : int8_t {
  kErf,   // by its definition: BART
  kTanh,  // the tanh approximation: GPT-2, BLOOM
};

// How a norm uses its weight: RmsNorm() of runner/ops/norm.h, NormaliseHeads() of
// runner/ops/head_norm.h.
enum class NormWeight : int8_t {
  kScale,    // multiplies by weight: Llama
  kOnePlus,  // multiplies by 1 + weight: Gemma
};

// Attention temperature that grows with the position: TemperQueries() of runner/ops/elementwise.h.
struct QueryTemperature {
  float attn_scale = 0.1f;
  float floor_scale = 8192;  // > 0
  int position_offset = 1;   // 1: Llama 4; 0: Ministral 3

  friend bool operator==(const QueryTemperature&, const QueryTemperature&) = default;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_OP_OPTIONS_H_
