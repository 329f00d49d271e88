#include "reprise/engine/preemption_rule.h"

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

// 10 us per token beyond 4. 1e6 bytes take 1,000 us out and 500 us in, plus 7 us per direction.
constexpr PreemptionCosts kCosts = {.us_per_prompt_token = 10,
                                    .num_hidden_tokens = 4,
                                    .out_gb_per_s = 1,
                                    .in_gb_per_s = 2,
                                    .us_per_swap = 7};

TEST(PreemptionRuleTest, SwapOutCostIncludesTheSwapIn) {
  // 1,514 us.
  EXPECT_FALSE(SwapOutPays(kCosts, {.num_recomputed = 4 + 151, .swap_bytes = 1000000}));
  EXPECT_TRUE(SwapOutPays(kCosts, {.num_recomputed = 4 + 152, .swap_bytes = 1000000}));
}

TEST(PreemptionRuleTest, SwapInCostExcludesTheSwapOut) {
  // 507 us.
  EXPECT_FALSE(SwapInPays(kCosts, {.num_recomputed = 4 + 50, .swap_bytes = 1000000}));
  EXPECT_TRUE(SwapInPays(kCosts, {.num_recomputed = 4 + 51, .swap_bytes = 1000000}));
}

TEST(PreemptionRuleTest, TokensLeftByASwapAddToItsCost) {
  PreemptionCase preempted = {.num_recomputed = 4 + 60, .num_left = 4, .swap_bytes = 1000000};
  EXPECT_TRUE(SwapInPays(kCosts, preempted));  // within num_hidden_tokens
  preempted.num_left = 4 + 9;
  EXPECT_TRUE(SwapInPays(kCosts, preempted));  // 90 + 507 us against 600
  preempted.num_left = 4 + 10;
  EXPECT_FALSE(SwapInPays(kCosts, preempted));
}

TEST(PreemptionRuleTest, HiddenTokensAreNeverSwapped) {
  EXPECT_FALSE(SwapOutPays(kCosts, {.num_recomputed = 4, .swap_bytes = 1}));
  EXPECT_FALSE(SwapInPays(kCosts, {.num_recomputed = 4, .swap_bytes = 0}));
  EXPECT_FALSE(SwapInPays(kCosts, {}));
}

// Blocks of 16 tokens of llama-3.1-8b take 2 MiB.
TEST(PreemptionRuleTest, H200CostsSwapLongSequencesAndRecomputeShortSequences) {
  const auto pays = [](int64_t num_tokens) {
    return SwapOutPays(
        H200PreemptionCosts(),
        {.num_recomputed = num_tokens, .num_left = 1, .swap_bytes = (num_tokens + 15) / 16 << 21});
  };
  EXPECT_FALSE(pays(100));
  EXPECT_TRUE(pays(256));
  EXPECT_TRUE(pays(8192));
  EXPECT_TRUE(CheckPreemptionCosts(H200PreemptionCosts()).ok());
}

TEST(PreemptionRuleTest, MeasuredStepsDetermineTheCostOfRecomputing) {
  // 512 tokens in 8 ms; a step reads its weights in 2 ms, the time of 128 tokens.
  const PreemptionCosts costs =
      WithMeasuredSteps(kCosts, /*num_tokens=*/512, /*largest_us=*/8000, /*min_us=*/2000);
  EXPECT_DOUBLE_EQ(costs.us_per_prompt_token, 8000.0 / 512);
  EXPECT_EQ(costs.num_hidden_tokens, 128);
  EXPECT_EQ(costs.out_gb_per_s, kCosts.out_gb_per_s);
  EXPECT_EQ(costs.in_gb_per_s, kCosts.in_gb_per_s);
  EXPECT_EQ(costs.us_per_swap, kCosts.us_per_swap);
  EXPECT_TRUE(CheckPreemptionCosts(costs).ok());
  // The largest step takes as long as a step of one token, or less because of noise.
  EXPECT_EQ(WithMeasuredSteps(kCosts, 512, 2000, 2000).num_hidden_tokens, 512);
  EXPECT_EQ(WithMeasuredSteps(kCosts, 512, 1000, 2000).num_hidden_tokens, 512);
  // Invalid times.
  for (const auto& [largest, least] : std::vector<std::pair<double, double>>{
           {0, 1}, {1, 0}, {-1, 1}, {std::nan(""), 1}, {1, std::nan("")}, {INFINITY, 1}}) {
    const PreemptionCosts kept = WithMeasuredSteps(kCosts, 512, largest, least);
    EXPECT_EQ(kept.us_per_prompt_token, kCosts.us_per_prompt_token) << largest << ", " << least;
    EXPECT_EQ(kept.num_hidden_tokens, kCosts.num_hidden_tokens);
  }
}

TEST(PreemptionRuleTest, RejectsInvalidCosts) {
  const auto refusal = [](auto change) {
    PreemptionCosts costs = kCosts;
    change(costs);
    const absl::Status status = CheckPreemptionCosts(costs);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_TRUE(CheckPreemptionCosts(kCosts).ok());
  EXPECT_THAT(
      refusal([](auto& costs) { costs.us_per_prompt_token = -1; }),
      HasSubstr("us_per_prompt_token of the preemption costs must be finite and at least 0: "
                "got -1"));
  EXPECT_THAT(refusal([](auto& costs) { costs.us_per_prompt_token = std::nan(""); }),
              HasSubstr("us_per_prompt_token"));
  EXPECT_THAT(refusal([](auto& costs) { costs.num_hidden_tokens = -1; }),
              HasSubstr("num_hidden_tokens"));
  EXPECT_THAT(refusal([](auto& costs) { costs.out_gb_per_s = 0; }), HasSubstr("out_gb_per_s"));
  EXPECT_THAT(refusal([](auto& costs) { costs.in_gb_per_s = -2; }), HasSubstr("in_gb_per_s"));
  EXPECT_THAT(
      refusal([](auto& costs) { costs.us_per_swap = std::numeric_limits<double>::infinity(); }),
      HasSubstr("us_per_swap"));
}

TEST(PreemptionRuleTest, ModesHaveNames) {
  std::ostringstream names;
  names << PreemptionMode::kAuto << " " << PreemptionMode::kRecompute << " "
        << PreemptionMode::kSwap << " " << static_cast<PreemptionMode>(9);
  EXPECT_EQ(names.str(), "auto recompute swap PreemptionMode(9)");
}

}  // namespace
}  // namespace reprise
