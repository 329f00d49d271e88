#include "reprise/models/moe/experts_config.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace reprise {
namespace {

ExpertsConfig DeepSeekLike() {
  return {.num_experts = 12,
          .num_chosen = 4,
          .inner_size = 8,
          .scores = RouterScores::kSigmoid,
          .choice_bias = true,
          .num_groups = 4,
          .num_chosen_groups = 2,
          .group_score = GroupScore::kTopTwo,
          .scale = 2.5,
          .shared_inner_size = 8};
}

// The message for DeepSeekLike() after `change`.
template <typename Change>
std::string ErrorAfter(const Change& change) {
  ExpertsConfig config = DeepSeekLike();
  change(config);
  const absl::Status status = CheckExperts(config);
  if (status.ok()) return "no error";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_LE(status.message().size(), 300u);
  return std::string(status.message());
}

TEST(ExpertsConfigTest, AcceptsConfigsOfFamilies) {
  EXPECT_TRUE(CheckExperts(DeepSeekLike()).ok());
  EXPECT_TRUE(CheckExperts({.num_experts = 1, .num_chosen = 1, .inner_size = 1}).ok());
  // GLM 4.5: one group, so that the score of a group does not matter.
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.num_groups = c.num_chosen_groups = 1; }),
            "no error");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) {
              c.group_score = GroupScore::kMax;
              c.num_groups = c.num_chosen_groups = 12;
            }),
            "no error");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.num_chosen = 6; }), "no error");
}

TEST(ExpertsConfigTest, RejectsSizesOutOfRange) {
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.num_experts = 0; }),
            "num_experts must be at least 1: got 0");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.num_chosen = 0; }),
            "num_chosen must be at least 1: got 0");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.num_chosen = 13; }),
            "num_chosen must not exceed num_experts: expected at most 12, got 13");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.inner_size = -1; }),
            "inner_size must be at least 1: got -1");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.shared_inner_size = -1; }),
            "shared_inner_size must be at least 0: got -1");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.block_columns = 0; }),
            "block_columns must be at least 1: got 0");
}

TEST(ExpertsConfigTest, RejectsGroupsThatDoNotFit) {
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.num_groups = 0; }),
            "num_groups must be at least 1: got 0");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.num_chosen_groups = 0; }),
            "num_chosen_groups must be at least 1: got 0");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.num_chosen_groups = 5; }),
            "num_chosen_groups must not exceed num_groups: expected at most 4, got 5");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.num_groups = 5; }),
            "num_groups must divide the number of experts: expected a divisor of 12, got 5");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.num_groups = 24; }),
            "num_groups must divide the number of experts: expected a divisor of 12, got 24");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.num_groups = 12; }),
            "num_groups must leave two experts per group, as the two largest scores of a group are "
            "added: expected at most 6, got 12");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.num_chosen_groups = 1; }),
            "num_chosen must not exceed the number of experts in the chosen groups: expected at "
            "most 3, got 4");
}

TEST(ExpertsConfigTest, RejectsNumbersAndFieldsThatContradict) {
  for (const double scale : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_TRUE(ErrorAfter([&](ExpertsConfig& c) {
                  c.scale = scale;
                }).starts_with("scale must be positive and finite"));
  }
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.sum_epsilon = -1; }),
            "sum_epsilon must not be negative and must be finite: got -1");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) {
              c.shared_inner_size = 0;
              c.shared_gate = true;
            }),
            "shared_gate requires a shared expert: expected shared_inner_size above 0, got 0");
  EXPECT_EQ(ErrorAfter([](ExpertsConfig& c) { c.expert_bias = true; }),
            "expert_bias requires stacked experts: expected kStacked or kStackedHalves, got "
            "kSeparate");
}

}  // namespace
}  // namespace reprise
