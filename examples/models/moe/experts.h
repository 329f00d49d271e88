// Unstable: any version may change this header (docs/embedding.md).
//
// A mixture of experts (Shazeer et al., 2017) as the feed-forward of a layer: a router chooses some
// experts a token, each a gated feed-forward of its own, and their outputs are added, weighted.
//
//   logits = router x + router_bias                      float32
//   e_1 .. e_k = the num_chosen experts of the largest logits, w_1 .. w_k their softmax
//   out = sum_i w_i * down_{e_i}(gate(gate_up_{e_i}(x)))
//
//   REPRISE_ASSIGN_OR_RETURN(ExpertWeights experts, ReadExperts(config, in, hidden_size));
//   REPRISE_RETURN_IF_ERROR(ApplyExperts(config, experts, step.linears(), x, out).status());
//
// Which experts are chosen never leaves the device, and all shapes are constants of the number of
// tokens: the call may be captured, and a graph serves any choice. A token's result depends on that
// token alone, but for rounding (ExpertsForm), so padded tokens cost time and change nothing.
//
// Thread safety: as LinearContext.

#ifndef REPRISE_MODELS_MOE_EXPERTS_H_
#define REPRISE_MODELS_MOE_EXPERTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/hf/weights.h"
#include "reprise/models/moe/experts_config.h"
#include "reprise/runner/ops/expert_linear.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/linear_context.h"

namespace reprise {

struct ExpertWeights {
  Linear router;                          // hidden_size -> num_experts, without the bias
  std::optional<at::Tensor> router_bias;  // [num_experts]
  ExpertLinear gate_up;                   // hidden_size -> 2 * inner_size, gate first
  ExpertLinear down;                      // inner_size -> hidden_size
};

// Over several ranks each has the gate, up and down of a part of every expert's inner elements: its
// output is then a summand, to be added over the ranks, and `config` in ApplyExperts() has the
// rank's inner_size. The router is whole, so that all ranks choose alike.
//
// The weights of a layer, whose names begin with "mlp." after the prefix of `in`. Errors: those of
// the source.
absl::StatusOr<ExpertWeights> ReadExperts(const ExpertsConfig& config, const LayerReader& in,
                                          int64_t hidden_size);

// For CheckWeights(); `weights` may be absent.
std::vector<NamedWeight> NamedExpertWeights(const std::optional<ExpertWeights>& weights);

// The experts of each token.
struct Routing {
  at::Tensor experts;  // [num_tokens, num_chosen] int64, that of the largest logit first
  at::Tensor weights;  // [num_tokens, num_chosen] float32
};

// x [num_tokens, hidden_size]. Throws LibTorch's exceptions. Errors: those of Linear::Apply().
absl::StatusOr<Routing> RouteTokens(const ExpertsConfig& config, const ExpertWeights& weights,
                                    LinearContext& context, const at::Tensor& x);

// How the products are computed (runner/ops/expert_linear.h).
enum class ExpertsForm : int8_t {
  kByShape,  // kAll on a GPU for more than eight rows an expert, unless deterministic; else kChosen
  kChosen,   // the chosen products alone
  kAll,      // all experts for 256 tokens at a time; the chosen outputs are kept
};

// x and out [num_tokens, hidden_size] of the weights' dtype; `out` may be `x`. The sum over experts
// is float32, rounded once. Throws LibTorch's exceptions. Errors: InvalidArgument, naming the
// argument of the operation that refuses it. Returns whose outputs were added.
absl::StatusOr<Routing> ApplyExperts(const ExpertsConfig& config, const ExpertWeights& weights,
                                     LinearContext& context, const at::Tensor& x,
                                     const at::Tensor& out,
                                     ExpertsForm form = ExpertsForm::kByShape);

}  // namespace reprise

#endif  // REPRISE_MODELS_MOE_EXPERTS_H_
