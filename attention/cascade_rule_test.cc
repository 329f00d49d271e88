#include "attention/cascade_rule.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::StartsWith;

// 1 TB/s is 1 byte a picosecond: a key of 1 kv head, 250 + 250 dims in 2 bytes takes 1 ns.
constexpr CascadeShape kShape = {.num_rows = 10,
                                 .num_tokens = 10,
                                 .common_prefix_len = 1000,
                                 .num_suffix_keys = 2000,
                                 .max_seq_len = 1500,
                                 .num_q_heads = 4,
                                 .num_kv_heads = 1,
                                 .head_dim_qk = 250,
                                 .head_dim_v = 250};
constexpr CascadeCosts kCosts = {.read_tb_per_s = 1,
                                 .reread_tb_per_s = 4,
                                 .l2_bytes = 1000000,
                                 .fixed_us = 0.5,
                                 .merge_us_per_token = 0.01,
                                 .tile_queries = 16};

TEST(CascadeRuleTest, TheModelIsThatOfTheHeader) {
  const CascadeDecision decision = ChooseCascade(kShape, kCosts);
  EXPECT_TRUE(decision.use());
  EXPECT_DOUBLE_EQ(decision.flat_us, 3 + 9 * 0.25);           // 3000 keys, 9 rereads of 1000
  EXPECT_DOUBLE_EQ(decision.cascade_us, 3 + 2 * 0.25 + 0.6);  // 40 queries are 3 tiles
}

TEST(CascadeRuleTest, APrefixBeyondTheL2IsReadFromMemoryEachTime) {
  CascadeCosts costs = kCosts;
  costs.l2_bytes = 999999;
  EXPECT_DOUBLE_EQ(ChooseCascade(kShape, costs).flat_us, 3 + 9);
}

TEST(CascadeRuleTest, RefusalsSayWhy) {
  const auto reason = [](const CascadeShape& shape) { return ChooseCascade(shape, kCosts).reason; };
  CascadeShape shape = kShape;
  shape.num_rows = 1;
  EXPECT_EQ(reason(shape), CascadeReason::kFewRows);
  shape = kShape;
  shape.common_prefix_len = 0;
  EXPECT_EQ(reason(shape), CascadeReason::kNoPrefix);
  shape = kShape;
  shape.window_left = 1498;  // the longest row's last query does not see token 0
  EXPECT_EQ(reason(shape), CascadeReason::kWindow);
  shape.window_left = 1499;
  EXPECT_EQ(reason(shape), CascadeReason::kUse);
  shape = kShape;
  shape.common_prefix_len = 16;
  EXPECT_EQ(reason(shape), CascadeReason::kNotQuicker);
}

TEST(CascadeRuleTest, MoreRowsAndLongerPrefixesNeverSpeakAgainstIt) {
  for (int rows = 2; rows <= 256; rows *= 2) {
    bool used = false;
    for (int64_t prefix = 16; prefix <= 65536; prefix *= 2) {
      CascadeShape shape = kShape;
      shape.num_rows = shape.num_tokens = rows;
      shape.common_prefix_len = prefix;
      shape.num_suffix_keys = rows * 100;
      const bool use = ChooseCascade(shape, H200CascadeCosts()).use();
      EXPECT_TRUE(use || !used) << rows << " rows, prefix " << prefix;
      used = use;
    }
  }
}

TEST(CascadeRuleTest, DecisionsPrint) {
  std::ostringstream text;
  text << ChooseCascade(kShape, kCosts);
  EXPECT_EQ(text.str(), "cascade: 5.2 us flat, 4.1 us with the prefix apart");
  CascadeShape shape = kShape;
  shape.common_prefix_len = 16;
  EXPECT_THAT(ToString(ChooseCascade(shape, kCosts)), StartsWith("flat: not quicker: "));
  shape.num_rows = 1;
  EXPECT_EQ(ToString(ChooseCascade(shape, kCosts)), "flat: fewer than two rows");
}

}  // namespace
}  // namespace reprise
