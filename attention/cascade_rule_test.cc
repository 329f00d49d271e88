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
// A product of 10 queries over 1,000 keys of 4 heads is 40 million operations.
constexpr CascadeCosts kCosts = {.read_tb_per_s = 1,
                                 .reread_tb_per_s = 4,
                                 .products_tflops = 100,
                                 .call_us = 2,
                                 .prefix_us = 0.5,
                                 .merge_us = 0.25,
                                 .merge_us_per_token = 0.01};

TEST(CascadeRuleTest, TheModelIsThatOfTheHeader) {
  const CascadeDecision decision = ChooseCascade(kShape, kCosts);
  EXPECT_TRUE(decision.use());
  EXPECT_DOUBLE_EQ(decision.flat_us, 2 + 3 + 9 * 0.25);  // 3000 keys, 9 rereads of 1000
  EXPECT_DOUBLE_EQ(decision.cascade_us, 2 + 3 + 0.5 + 0.4 + 0.25 + 0.1);
}

struct Measured {
  int num_rows;
  int prefix;
  double flat_us;
  double cascade_us;
};

// tests/benchmarks/device/shared_prefix on one H200.
constexpr Measured kMeasured[] = {
    {2, 256, 10.3, 23.5},      {2, 1024, 12.0, 23.5},       {2, 4096, 17.1, 28.5},
    {2, 16384, 44.0, 45.9},    {8, 256, 10.9, 29.1},        {8, 1024, 15.9, 31.0},
    {8, 4096, 32.3, 45.2},     {8, 16384, 120.3, 68.0},     {32, 256, 21.2, 38.8},
    {32, 1024, 33.1, 49.5},    {32, 4096, 87.6, 68.0},      {32, 16384, 359.7, 100.8},
    {64, 256, 28.9, 46.5},     {64, 1024, 55.8, 60.3},      {64, 4096, 161.8, 75.8},
    {64, 16384, 684.6, 140.9}, {128, 256, 47.7, 60.4},      {128, 1024, 101.2, 72.0},
    {128, 4096, 309.1, 96.9},  {128, 16384, 1326.8, 220.6}, {256, 256, 84.2, 88.8},
    {256, 1024, 191.7, 105.7}, {256, 4096, 603.5, 158.0},   {256, 16384, 2617.0, 399.0}};

TEST(CascadeRuleTest, OnAnH200ItChoosesWhatWasQuicker) {
  for (const Measured& measured : kMeasured) {
    const CascadeDecision decision = ChooseCascade({.num_rows = measured.num_rows,
                                                    .num_tokens = measured.num_rows,
                                                    .common_prefix_len = measured.prefix,
                                                    .num_suffix_keys = measured.num_rows * 128,
                                                    .max_seq_len = measured.prefix + 128,
                                                    .num_q_heads = 32,
                                                    .num_kv_heads = 8,
                                                    .head_dim_qk = 128,
                                                    .head_dim_v = 128},
                                                   H200CascadeCosts());
    EXPECT_EQ(decision.use(), measured.cascade_us < measured.flat_us)
        << measured.num_rows << " rows, prefix " << measured.prefix << ": " << decision;
  }
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
  EXPECT_EQ(text.str(), "cascade: 7.2 us flat, 6.2 us with the prefix apart");
  CascadeShape shape = kShape;
  shape.common_prefix_len = 16;
  EXPECT_THAT(ToString(ChooseCascade(shape, kCosts)), StartsWith("flat: not quicker: "));
  shape.num_rows = 1;
  EXPECT_EQ(ToString(ChooseCascade(shape, kCosts)), "flat: fewer than two rows");
}

}  // namespace
}  // namespace reprise
