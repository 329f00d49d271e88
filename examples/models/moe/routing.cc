#include "reprise/models/moe/routing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include <limits>
#include <tuple>

namespace reprise {
namespace {

bool LimitsGroups(const ExpertsConfig& config) {
  return config.num_chosen_groups < config.num_groups;
}

// Whether experts are chosen by their logits. Otherwise they are chosen by their scores: a bias and
// a sum of scores need them, and softmax without normalisation has them anyway.
bool ChoosesByLogits(const ExpertsConfig& config) {
  if (config.choice_bias) return false;
  if (LimitsGroups(config) && config.group_score == GroupScore::kTopTwo) return false;
  return config.scores == RouterScores::kSigmoid || config.normalises;
}

// Returns `choice` [num_tokens, num_experts] with -infinity outside the chosen groups.
at::Tensor WithinGroups(const ExpertsConfig& config, const at::Tensor& choice) {
  const at::Tensor groups =
      choice.view({choice.size(0), config.num_groups, config.num_experts / config.num_groups});
  at::Tensor scores;
  if (config.group_score == GroupScore::kMax) {
    scores = at::amax(groups, 2);
  } else {
    const at::Tensor top = std::get<0>(at::topk(groups, 2, 2));
    scores = top.select(2, 0) + top.select(2, 1);
  }
  const at::Tensor chosen = std::get<1>(at::topk(scores, config.num_chosen_groups, 1));
  const at::Tensor excluded =
      at::ones(scores.sizes(), scores.options().dtype(at::kBool)).scatter_(1, chosen, 0);
  return groups.masked_fill(excluded.unsqueeze(2), -std::numeric_limits<double>::infinity())
      .view(choice.sizes());
}

// [num_tokens, 1]
at::Tensor RowSums(const at::Tensor& x, RowOrder order) {
  if (order == RowOrder::kAny) return x.sum(1, /*keepdim=*/true);
  at::Tensor sums = x.narrow(1, 0, 1).clone();
  for (int64_t i = 1; i < x.size(1); ++i) sums.add_(x.narrow(1, i, 1));
  return sums;
}

}  // namespace

at::Tensor SigmoidInPlace(at::Tensor x, RowOrder order) {
  if (order == RowOrder::kAny || !x.is_cpu()) return x.sigmoid_();
  // LibTorch computes the last elements of a tensor by other instructions, which round differently.
  for (int64_t row = 0; row < x.size(0); ++row) x.select(0, row).sigmoid_();
  return x;
}

Routing ChooseExperts(const ExpertsConfig& config, const at::Tensor& logits,
                      const std::optional<at::Tensor>& choice_bias, RowOrder order) {
  const bool is_softmax = config.scores == RouterScores::kSoftmax;
  const bool by_logits = ChoosesByLogits(config);
  at::Tensor scores = logits;
  if (!by_logits) {
    scores = is_softmax ? at::softmax(logits, 1) : SigmoidInPlace(logits.clone(), order);
  }
  at::Tensor choice = choice_bias.has_value() ? scores + *choice_bias : scores;
  if (LimitsGroups(config)) choice = WithinGroups(config, choice);
  // Sorted, so that the order of sums does not depend on the batch.
  auto [chosen, experts] =
      at::topk(choice, config.num_chosen, 1, /*largest=*/true, /*sorted=*/true);
  if (!choice.is_same(scores)) chosen = at::gather(scores, 1, experts);

  at::Tensor weights;
  if (is_softmax && config.normalises) {
    weights = at::softmax(by_logits ? chosen : at::gather(logits, 1, experts), 1);
  } else {
    weights = by_logits ? SigmoidInPlace(chosen, order) : chosen;
    if (config.normalises) weights = weights / (RowSums(weights, order) + config.sum_epsilon);
  }
  if (config.scale != 1) weights = weights * config.scale;
  return Routing{.experts = experts, .weights = weights};
}

}  // namespace reprise
