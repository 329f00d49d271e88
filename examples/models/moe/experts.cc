#include "reprise/models/moe/experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

std::string Name(const ExpertsConfig& config, std::initializer_list<std::string_view> parts) {
  std::string name(config.names.prefix);
  for (const std::string_view part : parts) name.append(part);
  return name;
}

Share InnerShare(const ExpertsConfig& config, int64_t size, const Ranks& ranks) {
  return AlignedShareOf(size, ranks, std::max(64, config.block_columns));
}

absl::StatusOr<ExpertLinear> ReadSeparate(const ExpertsConfig& config, const LayerReader& in,
                                          const std::vector<std::string_view>& projections,
                                          int64_t out_features, int64_t in_features,
                                          std::optional<Share> rows, std::optional<Share> columns) {
  std::vector<WeightPart> parts;
  for (int expert = 0; expert < config.num_experts; ++expert) {
    for (const std::string_view projection : projections) {
      parts.push_back({.name = Name(config, {config.names.experts, ".", std::to_string(expert), ".",
                                             projection, ".weight"}),
                       .num_rows = out_features,
                       .share = rows});
    }
  }
  REPRISE_ASSIGN_OR_RETURN(at::Tensor weight,
                           in.Rows(parts, {in_features}, WeightKind::kMatrix, columns));
  return ExpertLinear::Create(weight.unflatten(0, {config.num_experts, -1}), std::nullopt);
}

// Columns of a stacked tensor, which are rows of each expert's weight, that a rank reads.
struct StackedRows {
  Share share;         // of each `period` columns
  int64_t period = 0;  // divides the number of columns
  // The number of the rank's columns per expert, if columns of two projections alternate.
  std::optional<int> pairs = {};
};

struct StackedTensor {
  std::string name;
  int64_t out_features = 0;
  int64_t in_features = 0;
  StackedRows rows;
  Share columns;  // the rank's part of in_features
  bool has_bias = false;
};

absl::StatusOr<ExpertLinear> ReadStacked(int64_t num_experts, const LayerReader& in,
                                         const StackedTensor& tensor) {
  const WeightPart matrices = {
      .name = tensor.name,
      .num_rows = num_experts * tensor.out_features,
      .unzipped_head = tensor.rows.pairs,
      .stored_shape = {num_experts, tensor.in_features, tensor.out_features},
      .is_transposed = true,
      .share = tensor.rows.share,
      .period = tensor.rows.period};
  const int64_t rank_rows = matrices.num_rank_rows() / num_experts;
  REPRISE_ASSIGN_OR_RETURN(at::Tensor weight, in.Rows({matrices}, {tensor.in_features},
                                                      WeightKind::kMatrix, tensor.columns));
  std::optional<at::Tensor> bias;
  if (tensor.has_bias) {
    const WeightPart vectors = {.name = tensor.name + "_bias",
                                .num_rows = matrices.num_rows,
                                .unzipped_head = tensor.rows.pairs,
                                .stored_shape = {num_experts, tensor.out_features},
                                .share = tensor.rows.share,
                                .period = tensor.rows.period};
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor read, in.Rows({vectors}, {}, WeightKind::kBias));
    bias = read.unflatten(0, {num_experts, rank_rows});
  }
  return ExpertLinear::Create(weight.unflatten(0, {num_experts, rank_rows}), std::move(bias));
}

absl::StatusOr<ExpertLinear> ReadGateUp(const ExpertsConfig& config, const LayerReader& in,
                                        int64_t hidden_size, const Share& own) {
  const ExpertNames& names = config.names;
  const int64_t inner = config.inner_size;
  if (config.files == ExpertFiles::kSeparate) {
    return ReadSeparate(config, in, {names.gate, names.up}, inner, hidden_size, own, {});
  }
  // The halves of an expert are two periods.
  const StackedRows rows = config.files == ExpertFiles::kStacked
                               ? StackedRows{.share = own.Times(2),
                                             .period = 2 * inner,
                                             .pairs = static_cast<int>(2 * own.size)}
                               : StackedRows{.share = own, .period = inner};
  return ReadStacked(config.num_experts, in,
                     {.name = Name(config, {names.experts, ".", names.gate_up}),
                      .out_features = 2 * inner,
                      .in_features = hidden_size,
                      .rows = rows,
                      .columns = {0, hidden_size},
                      .has_bias = config.expert_bias});
}

absl::StatusOr<ExpertLinear> ReadDown(const ExpertsConfig& config, const LayerReader& in,
                                      int64_t hidden_size, const Share& own) {
  const ExpertNames& names = config.names;
  if (config.files == ExpertFiles::kSeparate) {
    return ReadSeparate(config, in, {names.down}, hidden_size, config.inner_size, {}, own);
  }
  return ReadStacked(config.num_experts, in,
                     {.name = Name(config, {names.experts, ".", names.down}),
                      .out_features = hidden_size,
                      .in_features = config.inner_size,
                      .rows = {.share = {0, hidden_size}, .period = hidden_size},
                      .columns = own,
                      // The sum over the ranks has the bias of rank 0.
                      .has_bias = config.expert_bias && in.ranks().rank == 0});
}

// Sets the weights of the shared expert.
absl::Status ReadShared(const ExpertsConfig& config, const LayerReader& in, int64_t hidden_size,
                        ExpertWeights& weights) {
  const ExpertNames& names = config.names;
  const int64_t inner = config.shared_inner_size;
  const Share own = InnerShare(config, inner, in.ranks());
  const auto part = [&](std::string_view projection) {
    return WeightPart{
        .name = Name(config, {names.shared, ".", projection}), .num_rows = inner, .share = own};
  };
  REPRISE_ASSIGN_OR_RETURN(weights.shared_gate_up, in.Projection({part(names.gate), part(names.up)},
                                                                 hidden_size, LinearBias::kNone));
  REPRISE_ASSIGN_OR_RETURN(
      weights.shared_down,
      in.SummedProjection(part(names.down).name, hidden_size, inner, own, LinearBias::kNone));
  return absl::OkStatus();
}

ExpertsForm FormOf(bool deterministic, int64_t num_pairs, int64_t num_experts) {
  return deterministic || num_pairs <= kRowsPerExpert * num_experts ? ExpertsForm::kChosen
                                                                    : ExpertsForm::kAll;
}

// Returns the outputs of the chosen experts. x [num_rows, hidden_size]; experts [num_rows,
// num_chosen]; the result is [num_rows, num_chosen, hidden_size].
absl::StatusOr<at::Tensor> ChosenOutputs(const ExpertsConfig& config, const ExpertWeights& weights,
                                         LinearContext& context, const at::Tensor& x,
                                         const at::Tensor& experts) {
  const int64_t inner = weights.down.in_features();
  const at::Tensor pairs = experts.flatten();
  const at::Tensor gate_up = at::empty({pairs.size(0), 2 * inner}, x.options());
  const at::Tensor gated = at::empty({pairs.size(0), inner}, x.options());
  const at::Tensor outputs = at::empty({pairs.size(0), x.size(1)}, x.options());
  REPRISE_RETURN_IF_ERROR(weights.gate_up.Apply(context, x, pairs, gate_up));
  REPRISE_RETURN_IF_ERROR(GateMul(config.activation, gate_up, gated));
  REPRISE_RETURN_IF_ERROR(weights.down.Apply(context, gated, pairs, outputs));
  return outputs.view({x.size(0), experts.size(1), x.size(1)});
}

// Like ChosenOutputs(), by way of the outputs of all experts. The outputs of experts that were not
// chosen may have any value, including infinity: they are not read.
absl::StatusOr<at::Tensor> OutputsOfAll(const ExpertsConfig& config, const ExpertWeights& weights,
                                        LinearContext& context, const at::Tensor& x,
                                        const at::Tensor& experts) {
  const int64_t num_rows = x.size(0);
  const int64_t num_experts = config.num_experts;
  const int64_t inner = weights.down.in_features();
  const at::Tensor gate_up = at::empty({num_rows, num_experts, 2 * inner}, x.options());
  const at::Tensor gated = at::empty({num_rows, num_experts, inner}, x.options());
  const at::Tensor outputs = at::empty({num_rows, num_experts, x.size(1)}, x.options());
  REPRISE_RETURN_IF_ERROR(weights.gate_up.ApplyAll(
      context, x.unsqueeze(1).expand({num_rows, num_experts, x.size(1)}), gate_up));
  REPRISE_RETURN_IF_ERROR(
      GateMul(config.activation, gate_up.flatten(0, 1), gated.view({num_rows * num_experts, -1})));
  REPRISE_RETURN_IF_ERROR(weights.down.ApplyAll(context, gated, outputs));
  return at::gather(outputs, 1,
                    experts.unsqueeze(2).expand({num_rows, experts.size(1), x.size(1)}));
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

// Returns the sum over the chosen experts, [num_tokens, hidden_size] float32.
absl::StatusOr<at::Tensor> RoutedSum(const ExpertsConfig& config, const ExpertWeights& weights,
                                     LinearContext& context, const at::Tensor& x,
                                     const Routing& routing, ExpertsForm form) {
  const auto outputs = form == ExpertsForm::kAll ? OutputsOfAll : ChosenOutputs;
  const bool in_order = x.is_cpu() || context.is_deterministic();
  if (!config.scales_input) {
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor chosen,
                             outputs(config, weights, context, x, routing.experts));
    return WeightedSum(chosen, routing.weights, in_order);
  }
  // Each pair of a token and an expert is a row of its own.
  const at::Tensor scaled =
      at::mul(x.unsqueeze(1), routing.weights.unsqueeze(2)).to(x.scalar_type()).flatten(0, 1);
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor chosen, outputs(config, weights, context, scaled,
                                                            routing.experts.reshape({-1, 1})));
  return WeightedSum(chosen.view({x.size(0), -1, x.size(1)}), at::ones_like(routing.weights),
                     in_order);
}

RowOrder RowOrderOf(const LinearContext& context) {
  return context.is_deterministic() ? RowOrder::kFixed : RowOrder::kAny;
}

// Returns the output of the shared expert, [num_tokens, hidden_size] float32. `logits`: LogitsOf()
// of x.
absl::StatusOr<at::Tensor> SharedOutput(const ExpertsConfig& config, const ExpertWeights& weights,
                                        LinearContext& context, const at::Tensor& x,
                                        const at::Tensor& logits) {
  const int64_t inner = weights.shared_down->in_features();
  const at::Tensor gate_up = at::empty({x.size(0), 2 * inner}, x.options());
  const at::Tensor gated = at::empty({x.size(0), inner}, x.options());
  const at::Tensor out = at::empty(x.sizes(), x.options().dtype(at::kFloat));
  REPRISE_RETURN_IF_ERROR(
      weights.shared_gate_up->ApplyGated(context, config.activation, x, gate_up, gated));
  REPRISE_RETURN_IF_ERROR(weights.shared_down->Apply(context, gated, out));
  if (config.shared_gate) {
    out.mul_(
        SigmoidInPlace(logits.narrow(1, config.num_experts, 1).contiguous(), RowOrderOf(context)));
  }
  return out;
}

// Returns the router's logits of x, [num_tokens, num_experts] float32, and in a further column
// those of the shared expert's gate, if there is one.
absl::StatusOr<at::Tensor> LogitsOf(const ExpertsConfig& config, const ExpertWeights& weights,
                                    LinearContext& context, const at::Tensor& x) {
  constexpr int64_t kAlignment = 4;  // rows begin at multiples of 16 bytes
  const int64_t num_columns = weights.router.out_features();
  const int64_t stride = (num_columns + kAlignment - 1) / kAlignment * kAlignment;
  const at::Tensor logits =
      at::empty({x.size(0), stride}, x.options().dtype(at::kFloat)).narrow(1, 0, num_columns);
  REPRISE_RETURN_IF_ERROR(weights.router.Apply(context, x, logits));
  if (weights.router_bias.has_value()) {
    logits.narrow(1, 0, config.num_experts).add_(*weights.router_bias);
  }
  return logits;
}

Routing ChooseByLogits(const ExpertsConfig& config, const ExpertWeights& weights,
                       const LinearContext& context, const at::Tensor& logits) {
  return ChooseExperts(config, logits.narrow(1, 0, config.num_experts).contiguous(),
                       weights.choice_bias, RowOrderOf(context));
}

}  // namespace

absl::StatusOr<ExpertsConfig> ExpertsOfRank(const ExpertsConfig& config, const Ranks& ranks) {
  ExpertsConfig own = config;
  REPRISE_RETURN_IF_ERROR(CheckDivides("experts.inner_size", config.inner_size, ranks));
  own.inner_size = static_cast<int>(InnerShare(config, config.inner_size, ranks).size);
  if (config.shared_inner_size > 0) {
    REPRISE_RETURN_IF_ERROR(
        CheckDivides("experts.shared_inner_size", config.shared_inner_size, ranks));
    own.shared_inner_size =
        static_cast<int>(InnerShare(config, config.shared_inner_size, ranks).size);
  }
  return own;
}

absl::StatusOr<ExpertWeights> ReadExperts(const ExpertsConfig& config, const LayerReader& in,
                                          int64_t hidden_size) {
  const std::string router_name = Name(config, {config.names.router});
  const Share own = InnerShare(config, config.inner_size, in.ranks());
  std::optional<at::Tensor> router_bias, choice_bias;
  if (config.router_bias) {
    REPRISE_ASSIGN_OR_RETURN(router_bias, in.Bias(router_name + ".bias", config.num_experts));
  }
  if (config.choice_bias) {
    REPRISE_ASSIGN_OR_RETURN(
        choice_bias, in.Float32(Name(config, {config.names.choice_bias}), config.num_experts));
  }
  std::vector<WeightPart> router_rows = {{router_name, config.num_experts}};
  if (config.shared_gate) router_rows.push_back({Name(config, {config.names.shared_gate}), 1});
  // A StatusOr, as gcc 12 takes a Linear that is moved twice for uninitialised.
  absl::StatusOr<Linear> router = in.Projection(router_rows, hidden_size, LinearBias::kNone);
  REPRISE_RETURN_IF_ERROR(router.status());
  REPRISE_ASSIGN_OR_RETURN(ExpertLinear gate_up, ReadGateUp(config, in, hidden_size, own));
  REPRISE_ASSIGN_OR_RETURN(ExpertLinear down, ReadDown(config, in, hidden_size, own));
  ExpertWeights weights = {.router = *std::move(router),
                           .router_bias = std::move(router_bias),
                           .choice_bias = std::move(choice_bias),
                           .gate_up = std::move(gate_up),
                           .down = std::move(down),
                           .shared_gate_up = {},
                           .shared_down = {}};
  if (config.shared_inner_size > 0) {
    REPRISE_RETURN_IF_ERROR(ReadShared(config, in, hidden_size, weights));
  }
  return weights;
}

std::vector<NamedWeight> NamedExpertWeights(const std::optional<ExpertWeights>& weights) {
  if (!weights.has_value()) {
    return {{"router", nullptr},
            {"router_bias", nullptr},
            {"choice_bias", nullptr},
            {"expert gate_up", nullptr},
            {"expert gate_up bias", nullptr},
            {"expert down", nullptr},
            {"expert down bias", nullptr},
            {"shared expert gate_up", nullptr},
            {"shared expert down", nullptr}};
  }
  return {Named("router", weights->router),
          Named("router_bias", weights->router_bias),
          Named("choice_bias", weights->choice_bias),
          Named("expert gate_up", weights->gate_up.weight()),
          Named("expert gate_up bias", weights->gate_up.bias()),
          Named("expert down", weights->down.weight()),
          Named("expert down bias", weights->down.bias()),
          Named("shared expert gate_up", weights->shared_gate_up),
          Named("shared expert down", weights->shared_down)};
}

absl::StatusOr<Routing> RouteTokens(const ExpertsConfig& config, const ExpertWeights& weights,
                                    LinearContext& context, const at::Tensor& x) {
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, LogitsOf(config, weights, context, x));
  return ChooseByLogits(config, weights, context, logits);
}

absl::StatusOr<Routing> ApplyExperts(const ExpertsConfig& config, const ExpertWeights& weights,
                                     LinearContext& context, const at::Tensor& x,
                                     const at::Tensor& out, ExpertsForm form) {
  const int64_t num_tokens = x.size(0);
  if (num_tokens == 0) return Routing{};
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, LogitsOf(config, weights, context, x));
  Routing routing = ChooseByLogits(config, weights, context, logits);
  std::optional<at::Tensor> shared;
  if (weights.shared_gate_up.has_value()) {
    REPRISE_ASSIGN_OR_RETURN(shared, SharedOutput(config, weights, context, x, logits));
  }
  if (form == ExpertsForm::kByShape) {
    form = FormOf(x.is_cpu() || context.is_deterministic(), num_tokens * config.num_chosen,
                  config.num_experts);
  }
  const int64_t at_once = form == ExpertsForm::kAll ? kTokensAtOnce : num_tokens;
  for (int64_t begin = 0; begin < num_tokens; begin += at_once) {
    const int64_t count = std::min(at_once, num_tokens - begin);
    const Routing part = {.experts = routing.experts.narrow(0, begin, count),
                          .weights = routing.weights.narrow(0, begin, count)};
    REPRISE_ASSIGN_OR_RETURN(
        const at::Tensor sum,
        RoutedSum(config, weights, context, x.narrow(0, begin, count), part, form));
    if (shared.has_value()) sum.add_(shared->narrow(0, begin, count));
    out.narrow(0, begin, count).copy_(sum);
  }
  return routing;
}

}  // namespace reprise
