#include "reprise/models/moe/experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/share.h"
#include "reprise/runner/ops/elementwise.h"

namespace reprise {
namespace {

// Rows of an expert up to which the chosen products are computed on a GPU: those of which a weight
// is read once (runner/ops/expert_linear.cu).
constexpr int64_t kRowsPerExpert = 8;

// Tokens that are multiplied by all experts at once: about as many as keep tensor cores busy while
// the weights are read; more would only need more memory.
constexpr int64_t kTokensAtOnce = 256;

absl::StatusOr<ExpertLinear> ReadSeparate(const ExpertsConfig& config, const LayerReader& in,
                                          const std::vector<const char*>& projections,
                                          int64_t out_features, int64_t in_features,
                                          std::optional<Share> rows, std::optional<Share> columns) {
  std::vector<WeightPart> parts;
  for (int expert = 0; expert < config.num_experts; ++expert) {
    for (const char* const projection : projections) {
      parts.push_back({.name = absl::StrCat("mlp.experts.", expert, ".", projection, ".weight"),
                       .num_rows = out_features,
                       .share = rows});
    }
  }
  REPRISE_ASSIGN_OR_RETURN(at::Tensor weight,
                           in.Rows(parts, {in_features}, WeightKind::kMatrix, columns));
  return ExpertLinear::Create(weight.unflatten(0, {config.num_experts, -1}), std::nullopt);
}

// `rows`, `columns`: this rank's of each expert. `pairs`: the rank's rows of an expert of which the
// even ones come first, then the odd ones.
absl::StatusOr<ExpertLinear> ReadStacked(const ExpertsConfig& config, const LayerReader& in,
                                         const std::string& name, int64_t out_features,
                                         int64_t in_features, std::optional<int> pairs,
                                         const Share& rows, const Share& columns, bool has_bias) {
  const int64_t num_experts = config.num_experts;
  const WeightPart matrices = {.name = name,
                               .num_rows = num_experts * out_features,
                               .unzipped_head = pairs,
                               .stored_shape = {num_experts, in_features, out_features},
                               .is_transposed = true,
                               .share = rows,
                               .period = out_features};
  REPRISE_ASSIGN_OR_RETURN(at::Tensor weight,
                           in.Rows({matrices}, {in_features}, WeightKind::kMatrix, columns));
  std::optional<at::Tensor> bias;
  if (has_bias) {
    const WeightPart vectors = {.name = name + "_bias",
                                .num_rows = num_experts * out_features,
                                .unzipped_head = pairs,
                                .stored_shape = {num_experts, out_features},
                                .share = rows,
                                .period = out_features};
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor read, in.Rows({vectors}, {}, WeightKind::kBias));
    bias = read.unflatten(0, {num_experts, rows.size});
  }
  return ExpertLinear::Create(weight.unflatten(0, {num_experts, rows.size}), std::move(bias));
}

ExpertsForm FormOf(bool deterministic, int64_t num_pairs, int64_t num_experts) {
  return deterministic || num_pairs <= kRowsPerExpert * num_experts ? ExpertsForm::kChosen
                                                                    : ExpertsForm::kAll;
}

// The outputs of the chosen experts, [num_tokens, num_chosen, hidden_size].
absl::StatusOr<at::Tensor> ChosenOutputs(const ExpertsConfig& config, const ExpertWeights& weights,
                                         LinearContext& context, const at::Tensor& x,
                                         const at::Tensor& experts) {
  const at::Tensor pairs = experts.flatten();
  const at::Tensor gate_up = at::empty({pairs.size(0), 2 * config.inner_size}, x.options());
  const at::Tensor gated = at::empty({pairs.size(0), config.inner_size}, x.options());
  const at::Tensor outputs = at::empty({pairs.size(0), x.size(1)}, x.options());
  REPRISE_RETURN_IF_ERROR(weights.gate_up.Apply(context, x, pairs, gate_up));
  REPRISE_RETURN_IF_ERROR(GateMul(config.activation, gate_up, gated));
  REPRISE_RETURN_IF_ERROR(weights.down.Apply(context, gated, pairs, outputs));
  return outputs.view({x.size(0), config.num_chosen, x.size(1)});
}

// The same by way of the outputs of all experts. Outputs that were not chosen may be of any value,
// infinity too: they are not read.
absl::StatusOr<at::Tensor> OutputsOfAll(const ExpertsConfig& config, const ExpertWeights& weights,
                                        LinearContext& context, const at::Tensor& x,
                                        const at::Tensor& experts) {
  const int64_t num_tokens = x.size(0);
  const int64_t num_experts = config.num_experts;
  const int64_t inner = config.inner_size;
  const at::Tensor gate_up = at::empty({num_tokens, num_experts, 2 * inner}, x.options());
  const at::Tensor gated = at::empty({num_tokens, num_experts, inner}, x.options());
  const at::Tensor outputs = at::empty({num_tokens, num_experts, x.size(1)}, x.options());
  REPRISE_RETURN_IF_ERROR(weights.gate_up.ApplyAll(
      context, x.unsqueeze(1).expand({num_tokens, num_experts, x.size(1)}), gate_up));
  REPRISE_RETURN_IF_ERROR(GateMul(config.activation, gate_up.flatten(0, 1),
                                  gated.view({num_tokens * num_experts, -1})));
  REPRISE_RETURN_IF_ERROR(weights.down.ApplyAll(context, gated, outputs));
  return at::gather(outputs, 1,
                    experts.unsqueeze(2).expand({num_tokens, config.num_chosen, x.size(1)}));
}

// [num_tokens, hidden_size] float32. LibTorch's sum may choose its order by the size of the batch.
at::Tensor WeightedSum(const at::Tensor& outputs, const at::Tensor& weights, bool in_order) {
  const at::Tensor factors = weights.unsqueeze(2);
  if (!in_order) return at::mul(outputs, factors).sum(1);
  at::Tensor sum = at::mul(outputs.select(1, 0), factors.select(1, 0));
  for (int64_t i = 1; i < outputs.size(1); ++i) {
    sum.add_(at::mul(outputs.select(1, i), factors.select(1, i)));
  }
  return sum;
}

}  // namespace

absl::StatusOr<ExpertWeights> ReadExperts(const ExpertsConfig& config, const LayerReader& in,
                                          int64_t hidden_size) {
  const bool stacked = config.files == ExpertFiles::kStacked;
  const int64_t inner = config.inner_size;
  // Of each expert, the rank has a share of the inner elements.
  const Share own = AlignedShareOf(inner, in.ranks());
  const Share all = {0, hidden_size};
  std::optional<at::Tensor> router_bias;
  if (config.router_bias) {
    REPRISE_ASSIGN_OR_RETURN(
        router_bias, in.Bias(stacked ? "mlp.router.bias" : "mlp.gate.bias", config.num_experts));
  }
  absl::StatusOr<Linear> router = in.Projection(
      {{stacked ? "mlp.router" : "mlp.gate", config.num_experts}}, hidden_size, LinearBias::kNone);
  REPRISE_RETURN_IF_ERROR(router.status());
  absl::StatusOr<ExpertLinear> gate_up =
      stacked ? ReadStacked(config, in, "mlp.experts.gate_up_proj", 2 * inner, hidden_size,
                            static_cast<int>(2 * own.size), own.Times(2), all, config.expert_bias)
              : ReadSeparate(config, in, {"gate_proj", "up_proj"}, inner, hidden_size, own, {});
  REPRISE_RETURN_IF_ERROR(gate_up.status());
  absl::StatusOr<ExpertLinear> down =
      // The outputs are added over the ranks, and with them the bias of rank 0.
      stacked ? ReadStacked(config, in, "mlp.experts.down_proj", hidden_size, inner, std::nullopt,
                            all, own, config.expert_bias && in.ranks().rank == 0)
              : ReadSeparate(config, in, {"down_proj"}, hidden_size, inner, {}, own);
  REPRISE_RETURN_IF_ERROR(down.status());
  return ExpertWeights{.router = *std::move(router),
                       .router_bias = std::move(router_bias),
                       .gate_up = *std::move(gate_up),
                       .down = *std::move(down)};
}

std::vector<NamedWeight> NamedExpertWeights(const std::optional<ExpertWeights>& weights) {
  if (!weights.has_value()) {
    return {{"router", nullptr},         {"router_bias", nullptr},
            {"expert gate_up", nullptr}, {"expert gate_up bias", nullptr},
            {"expert down", nullptr},    {"expert down bias", nullptr}};
  }
  return {Named("router", weights->router),
          Named("router_bias", weights->router_bias),
          Named("expert gate_up", weights->gate_up.weight()),
          Named("expert gate_up bias", weights->gate_up.bias()),
          Named("expert down", weights->down.weight()),
          Named("expert down bias", weights->down.bias())};
}

absl::StatusOr<Routing> RouteTokens(const ExpertsConfig& config, const ExpertWeights& weights,
                                    LinearContext& context, const at::Tensor& x) {
  at::Tensor logits = at::empty({x.size(0), config.num_experts}, x.options().dtype(at::kFloat));
  REPRISE_RETURN_IF_ERROR(weights.router.Apply(context, x, logits));
  if (weights.router_bias.has_value()) logits.add_(*weights.router_bias);
  if (!config.normalises) logits = at::softmax(logits, -1);
  // Sorted, so that the order of sums does not depend on the batch.
  const auto [values, experts] =
      at::topk(logits, config.num_chosen, -1, /*largest=*/true, /*sorted=*/true);
  return Routing{.experts = experts,
                 .weights = config.normalises ? at::softmax(values, -1) : values};
}

absl::StatusOr<Routing> ApplyExperts(const ExpertsConfig& config, const ExpertWeights& weights,
                                     LinearContext& context, const at::Tensor& x,
                                     const at::Tensor& out, ExpertsForm form) {
  const int64_t num_tokens = x.size(0);
  if (num_tokens == 0) return Routing{};
  REPRISE_ASSIGN_OR_RETURN(Routing routing, RouteTokens(config, weights, context, x));
  const bool deterministic = x.is_cpu() || context.is_deterministic();
  if (form == ExpertsForm::kByShape) {
    form = FormOf(deterministic, num_tokens * config.num_chosen, config.num_experts);
  }
  const int64_t at_once = form == ExpertsForm::kAll ? kTokensAtOnce : num_tokens;
  for (int64_t begin = 0; begin < num_tokens; begin += at_once) {
    const int64_t count = std::min(at_once, num_tokens - begin);
    const at::Tensor tokens = x.narrow(0, begin, count);
    const at::Tensor experts = routing.experts.narrow(0, begin, count);
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor outputs,
                             form == ExpertsForm::kAll
                                 ? OutputsOfAll(config, weights, context, tokens, experts)
                                 : ChosenOutputs(config, weights, context, tokens, experts));
    out.narrow(0, begin, count)
        .copy_(WeightedSum(outputs, routing.weights.narrow(0, begin, count), deterministic));
  }
  return routing;
}

}  // namespace reprise
