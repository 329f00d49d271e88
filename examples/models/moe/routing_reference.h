// The routing of a mixture of experts in float64, for tests: written from the formulas of
// examples/models/moe/routing.h, expert by expert.

#ifndef REPRISE_MODELS_MOE_ROUTING_REFERENCE_H_
#define REPRISE_MODELS_MOE_ROUTING_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "reprise/models/moe/experts_config.h"

namespace reprise {

struct ReferenceRouting {
  std::vector<int> experts;     // the best one first
  std::vector<double> weights;  // of `experts`
  // The smallest relative distance of two scores whose order matters.
  double margin = std::numeric_limits<double>::infinity();
};

// Returns the indices of the `count` largest values, the largest first. Narrows `margin`.
inline std::vector<int> LargestOf(const std::vector<double>& values, int count, double& margin) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
  for (int i = 0; i < count && i + 1 < static_cast<int>(order.size()); ++i) {
    const double larger = values[order[i]];
    margin = std::min(margin, (larger - values[order[i + 1]]) / std::abs(larger));
  }
  order.resize(count);
  return order;
}

// The routing of one token. `bias` is empty if the config has no bias for the choice.
inline ReferenceRouting RouteInFloat64(const ExpertsConfig& config,
                                       const std::vector<double>& logits,
                                       const std::vector<double>& bias) {
  const int num_experts = config.num_experts;
  std::vector<double> scores(num_experts);
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  for (int e = 0; e < num_experts; ++e) {
    scores[e] = config.scores == RouterScores::kSoftmax ? std::exp(logits[e] - largest) / sum
                                                        : 1 / (1 + std::exp(-logits[e]));
  }
  std::vector<double> choice = scores;
  for (size_t e = 0; e < bias.size(); ++e) choice[e] += bias[e];

  ReferenceRouting result;
  if (config.num_chosen_groups < config.num_groups) {
    const int size = num_experts / config.num_groups;
    std::vector<double> group_scores;
    for (int group = 0; group < config.num_groups; ++group) {
      std::vector<double> members(choice.begin() + group * size,
                                  choice.begin() + (group + 1) * size);
      std::sort(members.rbegin(), members.rend());
      group_scores.push_back(config.group_score == GroupScore::kMax ? members[0]
                                                                    : members[0] + members[1]);
    }
    std::vector<bool> is_allowed(config.num_groups, false);
    for (const int group : LargestOf(group_scores, config.num_chosen_groups, result.margin)) {
      is_allowed[group] = true;
    }
    for (int e = 0; e < num_experts; ++e) {
      if (!is_allowed[e / size]) choice[e] = -std::numeric_limits<double>::infinity();
    }
  }
  result.experts = LargestOf(choice, config.num_chosen, result.margin);
  double total = 0;
  for (const int e : result.experts) total += scores[e];
  if (config.scores == RouterScores::kSigmoid) total += config.sum_epsilon;
  for (const int e : result.experts) {
    result.weights.push_back((config.normalises ? scores[e] / total : scores[e]) * config.scale);
  }
  return result;
}

}  // namespace reprise

#endif  // REPRISE_MODELS_MOE_ROUTING_REFERENCE_H_
