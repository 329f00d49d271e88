// Unstable: any version may change this header (docs/embedding.md).
//
// Data that describes a mixture of experts: its sizes, its routing and the names of its weights.
// Does not depend on LibTorch. examples/models/moe/experts.h states the formulas.
//
// Thread safety: values, and a pure function.

#ifndef REPRISE_MODELS_MOE_EXPERTS_CONFIG_H_
#define REPRISE_MODELS_MOE_EXPERTS_CONFIG_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

// The layout of a layer's routed experts in a checkpoint.
enum class ExpertFiles : int8_t {
  // One tensor per projection and expert, [out_features, in_features].
  kSeparate,
  // One tensor per projection, [num_experts, in_features, out_features]. Columns of gate and up
  // alternate: gpt-oss.
  kStacked,
  // Like kStacked, but all columns of gate precede the columns of up: Llama 4.
  kStackedHalves,
};

// The function that computes an expert's score from the logits of the router.
enum class RouterScores : int8_t {
  kSoftmax,  // softmax over all experts
  kSigmoid,  // sigmoid of the expert's logit
};

// The score of a group of experts.
enum class GroupScore : int8_t {
  kMax,     // the largest score of its experts: `group_limited_greedy` of DeepSeek-V2
  kTopTwo,  // the sum of its two largest scores, with the bias for the choice: DeepSeek-V3
};

// Names of the weights of a layer, without ".weight" and ".bias". All of them follow `prefix`,
// which follows the prefix of the layer. Strings must have static storage duration.
struct ExpertNames {
  std::string_view prefix = "mlp.";
  std::string_view router = "gate";
  std::string_view experts = "experts";       // then ".<expert>." if the experts are separate
  std::string_view gate = "gate_proj";        // of a separate expert or of the shared expert
  std::string_view up = "up_proj";            // likewise
  std::string_view down = "down_proj";        // of every kind of expert
  std::string_view gate_up = "gate_up_proj";  // of stacked experts
  std::string_view shared = "shared_experts";
  std::string_view shared_gate = "shared_expert_gate";
  std::string_view choice_bias = "gate.e_score_correction_bias";

  friend bool operator==(const ExpertNames&, const ExpertNames&) = default;
};

// The defaults of the routing are those of Qwen 3 MoE.
struct ExpertsConfig {
  int num_experts = 0;  // routed experts
  int num_chosen = 0;   // per token
  int inner_size = 0;   // of each routed expert
  Activation activation = Activation::kSilu;
  bool router_bias = false;  // added to the logits
  bool expert_bias = false;  // on gate, up and down of stacked experts

  RouterScores scores = RouterScores::kSoftmax;
  // Whether a float32 vector is added to the scores for the choice. Weights use the plain scores.
  bool choice_bias = false;
  // The experts form `num_groups` groups of consecutive experts. The `num_chosen_groups` groups of
  // the largest scores are chosen first, and then experts of these groups.
  int num_groups = 1;
  int num_chosen_groups = 1;
  GroupScore group_score = GroupScore::kMax;
  // Whether the weights of the chosen experts are divided by their sum, to which `sum_epsilon` is
  // added for sigmoid scores. For softmax scores this is the softmax over the chosen logits, which
  // needs no epsilon. LFM 2 has 1e-6.
  bool normalises = true;
  double sum_epsilon = 1e-20;
  double scale = 1;  // factor of the weights, after the division
  // Whether a weight multiplies the expert's input instead of its output: Llama 4.
  bool scales_input = false;

  int shared_inner_size = 0;  // of the shared expert, which takes every token; 0: no shared expert
  bool shared_gate = false;   // whether sigmoid(shared_gate x) multiplies its output

  ExpertFiles files = ExpertFiles::kSeparate;
  ExpertNames names = {};
  // Columns of a stored weight that share a scale. Ranks divide inner elements at multiples of this
  // number if possible.
  int block_columns = 1;

  friend bool operator==(const ExpertsConfig&, const ExpertsConfig&) = default;
};

// Returns InvalidArgument, naming the field, if a number is out of range or if fields contradict
// each other. Readers of configurations call it last.
absl::Status CheckExperts(const ExpertsConfig& config);

}  // namespace reprise

#endif  // REPRISE_MODELS_MOE_EXPERTS_CONFIG_H_
