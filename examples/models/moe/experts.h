// Unstable: any version may change this header (docs/embedding.md).
//
// A mixture of experts (Shazeer et al., 2017) as the feed-forward of a layer. A router chooses
// num_chosen experts per token. Each expert is a gated feed-forward, F_e(x) = down_e(gate(gate_up_e
// x)). A shared expert, if there is one, takes every token.
//
//   logits = router x + router_bias                                    float32
//   e_1 .. e_k, w_1 .. w_k = ChooseExperts(logits, choice_bias)        routing.h
//   out = sum_i w_i F_{e_i}(x), or sum_i F_{e_i}(w_i x)                scales_input
//   out = out + F_shared(x) [* sigmoid(shared_gate x)]                 shared_inner_size,
//   shared_gate
//
//   REPRISE_ASSIGN_OR_RETURN(ExpertWeights experts, ReadExperts(config, in, hidden_size));
//   REPRISE_RETURN_IF_ERROR(ApplyExperts(config, experts, step.linears(), x, out).status());
//
// The chosen experts stay on the device, and all shapes depend on the number of tokens alone. So
// the call may be captured, and a graph serves any choice. A token's result depends on that token
// alone, except for rounding (ExpertsForm), so padded tokens cost time and change nothing.
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
#include "reprise/models/moe/routing.h"
#include "reprise/runner/ops/expert_linear.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/linear_context.h"

namespace reprise {

struct ExpertWeights {
  // hidden_size -> num_experts, without the bias; the last row beside these is the gate of the
  // shared expert, if it has one.
  Linear router;
  std::optional<at::Tensor> router_bias;  // [num_experts]
  std::optional<at::Tensor> choice_bias;  // [num_experts] float32
  ExpertLinear gate_up;                   // hidden_size -> 2 * inner_size, gate first
  ExpertLinear down;                      // inner_size -> hidden_size
  std::optional<Linear> shared_gate_up;   // hidden_size -> 2 * shared_inner_size, gate first
  std::optional<Linear> shared_down;      // shared_inner_size -> hidden_size
};

// Returns `config` with the inner sizes of one of several ranks. Errors: InvalidArgument, naming
// the size, if a rank would have no inner element.
absl::StatusOr<ExpertsConfig> ExpertsOfRank(const ExpertsConfig& config, const Ranks& ranks);

// Reads the weights of a layer. `config` is the whole model's. If there are several ranks, each
// rank has the gate, up and down of a part of the inner elements of every expert, the shared expert
// included, and its output is a summand. Router and shared gate are whole, so all ranks choose the
// same experts. Errors: those of the source.
absl::StatusOr<ExpertWeights> ReadExperts(const ExpertsConfig& config, const LayerReader& in,
                                          int64_t hidden_size);

// For CheckWeights(); `weights` may be absent.
std::vector<NamedWeight> NamedExpertWeights(const std::optional<ExpertWeights>& weights);

// Chooses the experts of x [num_tokens, hidden_size]. RowOrder is kFixed in deterministic mode.
// Throws LibTorch's exceptions. Errors: those of Linear::Apply().
absl::StatusOr<Routing> RouteTokens(const ExpertsConfig& config, const ExpertWeights& weights,
                                    LinearContext& context, const at::Tensor& x);

// How the products are computed (runner/ops/expert_linear.h).
enum class ExpertsForm : int8_t {
  kByShape,  // kAll on a GPU for more than eight rows an expert, unless deterministic; else kChosen
  kChosen,   // the chosen products alone
  kAll,      // all experts for 256 tokens at a time; the chosen outputs are kept
};

// Computes the feed-forward of x and out [num_tokens, hidden_size], which have the weights' dtype.
// `out` may be `x`. The sum over all experts is float32, rounded once; an input that is scaled is
// rounded once too. `config` may be the model's or the rank's: inner sizes are read from the
// weights. Returns the routing, which is empty if there are no tokens. Throws LibTorch's
// exceptions. Errors: InvalidArgument, naming the argument of the operation that refuses it.
absl::StatusOr<Routing> ApplyExperts(const ExpertsConfig& config, const ExpertWeights& weights,
                                     LinearContext& context, const at::Tensor& x,
                                     const at::Tensor& out,
                                     ExpertsForm form = ExpertsForm::kByShape);

}  // namespace reprise

#endif  // REPRISE_MODELS_MOE_EXPERTS_H_
