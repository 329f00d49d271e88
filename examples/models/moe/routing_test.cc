// Compiled with REPRISE_TEST_ON_GPU, on a GPU.

#include "reprise/models/moe/routing.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/models/moe/routing_reference.h"
#include "reprise/runner/ops/test_device.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Every combination of the routing's options, for 12 and for 13 experts.
std::vector<ExpertsConfig> AllConfigs() {
  std::vector<ExpertsConfig> configs;
  for (const RouterScores scores : {RouterScores::kSoftmax, RouterScores::kSigmoid}) {
    for (const bool choice_bias : {false, true}) {
      for (const bool normalises : {false, true}) {
        for (const auto& [scale, epsilon] : {std::pair(1.0, 1e-20), std::pair(2.5, 1e-6)}) {
          const ExpertsConfig base = {.num_experts = 12,
                                      .num_chosen = 4,
                                      .inner_size = 8,
                                      .scores = scores,
                                      .choice_bias = choice_bias,
                                      .normalises = normalises,
                                      .sum_epsilon = epsilon,
                                      .scale = scale};
          for (const int num_chosen : {1, 3, 13}) {
            configs.push_back(base);
            configs.back().num_experts = 13;
            configs.back().num_chosen = num_chosen;
          }
          for (const GroupScore group_score : {GroupScore::kMax, GroupScore::kTopTwo}) {
            for (const auto& [groups, chosen_groups, chosen] :
                 {std::tuple(4, 2, 1), std::tuple(4, 2, 6), std::tuple(3, 1, 4),
                  std::tuple(6, 5, 4), std::tuple(4, 4, 4)}) {
              configs.push_back(base);
              configs.back().num_groups = groups;
              configs.back().num_chosen_groups = chosen_groups;
              configs.back().num_chosen = chosen;
              configs.back().group_score = group_score;
            }
          }
        }
      }
    }
  }
  return configs;
}

std::string Described(const ExpertsConfig& config) {
  return absl::StrCat(config.scores == RouterScores::kSoftmax ? "softmax" : "sigmoid",
                      config.choice_bias ? " biased" : "", config.normalises ? " normalised" : "",
                      " x ", config.scale, ", ", config.num_chosen, " of ", config.num_experts,
                      ", groups ", config.num_chosen_groups, " of ", config.num_groups,
                      config.group_score == GroupScore::kMax ? " by max" : " by top two");
}

std::vector<double> Doubles(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.cpu().to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

std::vector<int64_t> Ints(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.cpu().contiguous();
  return {dense.const_data_ptr<int64_t>(), dense.const_data_ptr<int64_t>() + dense.numel()};
}

class RoutingTest : public DeviceTest {
 protected:
  static at::Tensor Logits(int64_t num_tokens, int64_t num_experts, uint64_t seed) {
    at::Generator generator = at::globalContext().defaultGenerator(c10::kCPU).clone();
    generator.set_current_seed(seed);
    return at::empty({num_tokens, num_experts}).normal_(0, 2, generator).to(device());
  }

  static std::optional<at::Tensor> Bias(const ExpertsConfig& config) {
    if (!config.choice_bias) return std::nullopt;
    const at::Tensor ramp = at::linspace(0, 3, config.num_experts);
    return (ramp * 1.7).sin().mul(0.4).to(device());
  }

  static Routing Choose(const ExpertsConfig& config, const at::Tensor& logits,
                        RowOrder order = RowOrder::kAny) {
    EXPECT_TRUE(CheckExperts(config).ok()) << CheckExperts(config);
    return ChooseExperts(config, logits, Bias(config), order);
  }

  // Of one token, from literal logits.
  static Routing ChooseOf(const ExpertsConfig& config, const std::vector<float>& logits,
                          const std::vector<float>& bias = {}) {
    const auto row = [](const std::vector<float>& values) {
      return at::tensor(values).to(device());
    };
    return ChooseExperts(config, row(logits).unsqueeze(0),
                         bias.empty() ? std::nullopt : std::optional(row(bias)), RowOrder::kAny);
  }

  // Expects distinct experts in range, of no more groups than are allowed.
  static void ExpectLegal(const ExpertsConfig& config, const Routing& routing) {
    const int group_size = config.num_experts / config.num_groups;
    for (int64_t token = 0; token < routing.experts.size(0); ++token) {
      std::set<int64_t> experts, groups;
      for (const int64_t expert : Ints(routing.experts[token])) {
        EXPECT_GE(expert, 0);
        EXPECT_LT(expert, config.num_experts);
        experts.insert(expert);
        groups.insert(expert / group_size);
      }
      EXPECT_EQ(experts.size(), config.num_chosen) << "token " << token;
      EXPECT_LE(groups.size(), config.num_chosen_groups) << "token " << token;
    }
  }
};

TEST_F(RoutingTest, MatchesTheFormulasInFloat64) {
  uint64_t seed = 0;
  int num_compared = 0, num_close = 0;
  for (const ExpertsConfig& config : AllConfigs()) {
    SCOPED_TRACE(Described(config));
    const at::Tensor logits = Logits(33, config.num_experts, ++seed);
    const std::optional<at::Tensor> bias = Bias(config);
    for (const RowOrder order : {RowOrder::kAny, RowOrder::kFixed}) {
      const Routing routing = Choose(config, logits, order);
      ASSERT_EQ(routing.experts.scalar_type(), at::kLong);
      ASSERT_EQ(routing.weights.scalar_type(), at::kFloat);
      for (int64_t token = 0; token < logits.size(0); ++token) {
        const ReferenceRouting expected = RouteInFloat64(
            config, Doubles(logits[token]), bias ? Doubles(*bias) : std::vector<double>());
        if (expected.margin < 1e-5) {
          ++num_close;
          continue;
        }
        ++num_compared;
        const std::vector<int64_t> experts = Ints(routing.experts[token]);
        const std::vector<double> weights = Doubles(routing.weights[token]);
        for (int i = 0; i < config.num_chosen; ++i) {
          ASSERT_EQ(experts[i], expected.experts[i]) << "token " << token << ", choice " << i;
          ASSERT_NEAR(weights[i], expected.weights[i], 3e-6 * expected.weights[i]);
        }
      }
    }
  }
  EXPECT_LT(num_close * 50, num_compared);
}

TEST_F(RoutingTest, AddsTheBiasForTheChoiceAlone) {
  ExpertsConfig config = {.num_experts = 4,
                          .num_chosen = 2,
                          .inner_size = 8,
                          .scores = RouterScores::kSigmoid,
                          .choice_bias = true,
                          .normalises = false,
                          .scale = 3};
  const std::vector<float> bias = {0, 1, 0, 2};
  Routing routing = ChooseOf(config, {0, 0, 0, 0}, bias);
  EXPECT_THAT(Ints(routing.experts), ElementsAre(3, 1));
  EXPECT_THAT(Doubles(routing.weights), ElementsAre(1.5, 1.5));
  config.normalises = true;
  routing = ChooseOf(config, {0, 0, 0, 0}, bias);
  EXPECT_THAT(Doubles(routing.weights), ElementsAre(1.5, 1.5));
  config.scores = RouterScores::kSoftmax;
  routing = ChooseOf(config, {0, 0, 0, 0}, bias);
  EXPECT_THAT(Ints(routing.experts), ElementsAre(3, 1));
  EXPECT_THAT(Doubles(routing.weights), ElementsAre(1.5, 1.5));
  config.normalises = false;
  routing = ChooseOf(config, {0, 0, 0, 0}, bias);
  EXPECT_THAT(Doubles(routing.weights), ElementsAre(0.75, 0.75));
}

TEST_F(RoutingTest, ScoresGroupsByTheLargestOrTheTwoLargestScores) {
  ExpertsConfig config = {.num_experts = 6,
                          .num_chosen = 2,
                          .inner_size = 8,
                          .scores = RouterScores::kSigmoid,
                          .num_groups = 2,
                          .num_chosen_groups = 1};
  const std::vector<float> logits = {5, -5, -5, 2, 2.5, -5};
  EXPECT_EQ(Ints(ChooseOf(config, logits).experts)[0], 0);
  config.group_score = GroupScore::kTopTwo;
  EXPECT_THAT(Ints(ChooseOf(config, logits).experts), ElementsAre(4, 3));
  // Without limited groups, groups have no effect.
  config.num_chosen_groups = 2;
  EXPECT_THAT(Ints(ChooseOf(config, logits).experts), ElementsAre(0, 4));
}

TEST_F(RoutingTest, SaturatedLogitsKeepTheirOrder) {
  const ExpertsConfig config = {.num_experts = 4,
                                .num_chosen = 1,
                                .inner_size = 8,
                                .scores = RouterScores::kSigmoid,
                                .normalises = false};
  const Routing routing = ChooseOf(config, {40, 50, 60, 30});
  EXPECT_THAT(Ints(routing.experts), ElementsAre(2));
  EXPECT_THAT(Doubles(routing.weights), ElementsAre(1));
}

TEST_F(RoutingTest, SigmoidScoresThatVanishGiveFiniteWeights) {
  ExpertsConfig config = {
      .num_experts = 4, .num_chosen = 2, .inner_size = 8, .scores = RouterScores::kSigmoid};
  const std::vector<float> logits = {-200, -200, -200, -200};
  EXPECT_THAT(Doubles(ChooseOf(config, logits).weights), ElementsAre(0, 0));
}

// Qwen 3 MoE and gpt-oss before the routing had options.
TEST_F(RoutingTest, SoftmaxWithoutOptionsIsTopkAndSoftmaxBitwise) {
  ExpertsConfig config = {.num_experts = 13, .num_chosen = 4, .inner_size = 8};
  const at::Tensor logits = Logits(50, 13, 9);
  for (const RowOrder order : {RowOrder::kAny, RowOrder::kFixed}) {
    config.normalises = true;
    Routing routing = Choose(config, logits, order);
    const auto [largest, experts] = at::topk(logits, 4, -1, true, true);
    EXPECT_TRUE(at::equal(routing.experts, experts));
    EXPECT_TRUE(at::equal(routing.weights, at::softmax(largest, -1)));
    config.normalises = false;
    routing = Choose(config, logits, order);
    const auto [scores, same] = at::topk(at::softmax(logits, -1), 4, -1, true, true);
    EXPECT_TRUE(at::equal(routing.experts, same));
    EXPECT_TRUE(at::equal(routing.weights, scores));
  }
}

TEST_F(RoutingTest, TiesGiveDistinctExpertsOfAllowedGroups) {
  for (const ExpertsConfig& config : AllConfigs()) {
    SCOPED_TRACE(Described(config));
    const at::Tensor zero = at::zeros({3, config.num_experts}).to(device());
    const Routing routing = Choose(config, zero);
    ExpectLegal(config, routing);
    EXPECT_TRUE(at::equal(routing.experts[0], routing.experts[2]));
    const double score = config.scores == RouterScores::kSoftmax ? 1.0 / config.num_experts : 0.5;
    const double weight = config.normalises ? 1.0 / config.num_chosen : score;
    for (const double got : Doubles(routing.weights)) {
      EXPECT_NEAR(got, weight * config.scale, 1e-5);
    }
  }
}

TEST_F(RoutingTest, LogitsThatAreNotFiniteDoNotChangeOtherTokens) {
  for (const ExpertsConfig& config : AllConfigs()) {
    SCOPED_TRACE(Described(config));
    const at::Tensor logits = Logits(8, config.num_experts, 3);
    const Routing expected = Choose(config, logits, RowOrder::kFixed);
    at::Tensor broken = logits.clone();
    broken[1].fill_(std::nan(""));
    broken[2].fill_(kInfinity);
    broken[3].fill_(-kInfinity);
    broken[4][5].fill_(std::nan(""));
    broken[5][0].fill_(kInfinity);
    broken[6].narrow(0, 2, 7).fill_(-kInfinity);
    const Routing routing = Choose(config, broken, RowOrder::kFixed);
    for (const int64_t token : {0, 7}) {
      EXPECT_TRUE(at::equal(routing.experts[token], expected.experts[token]));
      EXPECT_TRUE(at::equal(routing.weights[token], expected.weights[token]));
    }
    for (int64_t token = 1; token < 7; ++token) {
      const std::vector<int64_t> experts = Ints(routing.experts[token]);
      const std::set<int64_t> distinct(experts.begin(), experts.end());
      EXPECT_EQ(distinct.size(), config.num_chosen);
      EXPECT_GE(*distinct.begin(), 0);
      EXPECT_LT(*distinct.rbegin(), config.num_experts);
    }
  }
}

TEST_F(RoutingTest, ResultsInFixedOrderAreBitwiseIndependentOfTheBatch) {
  for (const ExpertsConfig& config : AllConfigs()) {
    SCOPED_TRACE(Described(config));
    const at::Tensor logits = Logits(37, config.num_experts, 4);
    const Routing whole = Choose(config, logits, RowOrder::kFixed);
    for (const auto& [begin, count] : {std::pair(0, 1), std::pair(5, 3), std::pair(36, 1)}) {
      const Routing part = Choose(config, logits.narrow(0, begin, count), RowOrder::kFixed);
      EXPECT_TRUE(at::equal(part.experts, whole.experts.narrow(0, begin, count)));
      EXPECT_TRUE(at::equal(part.weights, whole.weights.narrow(0, begin, count)));
    }
  }
}

TEST_F(RoutingTest, LeavesTheLogitsUnchangedAndTakesNoTokens) {
  for (const ExpertsConfig& config : AllConfigs()) {
    SCOPED_TRACE(Described(config));
    const at::Tensor logits = Logits(2, config.num_experts, 5);
    const at::Tensor before = logits.clone();
    Choose(config, logits);
    EXPECT_TRUE(at::equal(logits, before));
    for (const RowOrder order : {RowOrder::kAny, RowOrder::kFixed}) {
      const Routing none = Choose(config, logits.narrow(0, 0, 0), order);
      EXPECT_THAT(none.experts.sizes().vec(), ElementsAre(0, config.num_chosen));
      EXPECT_THAT(none.weights.sizes().vec(), ElementsAre(0, config.num_chosen));
    }
  }
}

}  // namespace
}  // namespace reprise
