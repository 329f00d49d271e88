// Unstable: any version may change this header (docs/embedding.md).
//
// The choices of a mixture of experts. No LibTorch, so that configurations need none.

#ifndef REPRISE_MODELS_MOE_EXPERTS_CONFIG_H_
#define REPRISE_MODELS_MOE_EXPERTS_CONFIG_H_

#include <cstdint>

#include "reprise/runner/ops/op_options.h"

namespace reprise {

// How a checkpoint holds the experts of a layer.
enum class ExpertFiles : int8_t {
  // A tensor a projection and expert, [out_features, in_features]: Qwen 3 MoE.
  kSeparate,
  // A tensor a projection, [num_experts, in_features, out_features], in which gate and up
  // alternate, column by column: gpt-oss.
  kStacked,
};

struct ExpertsConfig {
  int num_experts = 0;
  int num_chosen = 0;  // of a token; at most num_experts
  int inner_size = 0;  // of an expert
  Activation activation = Activation::kSilu;
  bool router_bias = false;
  bool expert_bias = false;  // on gate, up and down
  // Whether the weights of the chosen experts add up to 1: the softmax of their logits. Else they
  // are theirs of the softmax of all logits.
  bool normalises = true;
  ExpertFiles files = ExpertFiles::kSeparate;

  friend bool operator==(const ExpertsConfig&, const ExpertsConfig&) = default;
};

}  // namespace reprise

#endif  // REPRISE_MODELS_MOE_EXPERTS_CONFIG_H_
