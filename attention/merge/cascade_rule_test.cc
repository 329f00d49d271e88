#include "reprise/attention/merge/cascade_rule.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/device_profile.h"

namespace reprise {
namespace {

using ::testing::StartsWith;

// 1 TB/s is 1 byte per ps: a key of 1 KV head with 250 + 250 dims of 2 bytes takes 1 ns.
constexpr CascadeShape kShape = {.num_rows = 10,
                                 .num_tokens = 10,
                                 .common_prefix_len = 1000,
                                 .num_suffix_keys = 2000,
                                 .max_seq_len = 1500,
                                 .num_q_heads = 4,
                                 .num_kv_heads = 1,
                                 .head_dim_qk = 250,
                                 .head_dim_v = 250};
// The MMAs of 10 queries over 1,000 keys with 4 heads are 40 million operations.
constexpr CascadeCosts kCosts = {.read_tb_per_s = 1,
                                 .reread_tb_per_s = 4,
                                 .products_tflops = 100,
                                 .call_us = 2,
                                 .prefix_us = 0.5,
                                 .merge_us = 0.25,
                                 .merge_us_per_token = 0.01};

TEST(CascadeRuleTest, MatchesTheCostModelOfTheHeader) {
  const CascadeDecision decision = ChooseCascade(kShape, kCosts);
  EXPECT_TRUE(decision.use());
  EXPECT_DOUBLE_EQ(decision.flat_us, 2 + 3 + 9 * 0.25);  // 3000 keys, 9 rereads of 1000 keys
  EXPECT_DOUBLE_EQ(decision.cascade_us, 2 + 3 + 0.5 + 0.4 + 0.25 + 0.1);

  CascadeCosts costs = kCosts;
  costs.products_tflops = 0;
  costs.tile_reread_tb_per_s = 2;
  costs.suffix_tb_per_s = 0.8;
  CascadeShape shape = kShape;
  shape.tile_queries = 4;  // 10 queries: three tiles, two rereads
  const CascadeDecision in_tiles = ChooseCascade(shape, costs);
  EXPECT_DOUBLE_EQ(in_tiles.flat_us, decision.flat_us);
  EXPECT_DOUBLE_EQ(in_tiles.cascade_us, 2 + 1 + 2.5 + 2 * 0.5 + 0.5 + 0.25 + 0.1);

  shape = kShape;
  shape.v_in_k = true;  // half of the bytes, all of the operations
  EXPECT_DOUBLE_EQ(ChooseCascade(shape, kCosts).flat_us, 2 + 1.5 + 9 * 0.125);
  EXPECT_DOUBLE_EQ(ChooseCascade(shape, kCosts).cascade_us, 2 + 1.5 + 0.5 + 0.4 + 0.25 + 0.1);
}

struct Measured {
  int num_rows;
  int prefix;
  int suffix;
  double flat_us;
  double cascade_us;
};

CascadeDecision DecideOnAnH200(const Measured& measured, int tile_queries,
                               const CascadeCosts& costs) {
  return ChooseCascade({.num_rows = measured.num_rows,
                        .num_tokens = measured.num_rows,
                        .common_prefix_len = measured.prefix,
                        .num_suffix_keys = int64_t{measured.num_rows} * measured.suffix,
                        .max_seq_len = measured.prefix + measured.suffix,
                        .num_q_heads = 32,
                        .num_kv_heads = 8,
                        .head_dim_qk = 128,
                        .head_dim_v = 128,
                        .tile_queries = tile_queries},
                       costs);
}

// Measured with tests/benchmarks/device/shared_prefix on one H200: three launches.
constexpr Measured kThreeLaunches[] = {
    {2, 256, 128, 10.3, 23.5},      {2, 1024, 128, 12.0, 23.5},
    {2, 4096, 128, 17.1, 28.5},     {2, 16384, 128, 44.0, 45.9},
    {8, 256, 128, 10.9, 29.1},      {8, 1024, 128, 15.9, 31.0},
    {8, 4096, 128, 32.3, 45.2},     {8, 16384, 128, 120.3, 68.0},
    {32, 256, 128, 21.2, 38.8},     {32, 1024, 128, 33.1, 49.5},
    {32, 4096, 128, 87.6, 68.0},    {32, 16384, 128, 359.7, 100.8},
    {64, 256, 128, 28.9, 46.5},     {64, 1024, 128, 55.8, 60.3},
    {64, 4096, 128, 161.8, 75.8},   {64, 16384, 128, 684.6, 140.9},
    {128, 256, 128, 47.7, 60.4},    {128, 1024, 128, 101.2, 72.0},
    {128, 4096, 128, 309.1, 96.9},  {128, 16384, 128, 1326.8, 220.6},
    {256, 256, 128, 84.2, 88.8},    {256, 1024, 128, 191.7, 105.7},
    {256, 4096, 128, 603.5, 158.0}, {256, 16384, 128, 2617.0, 399.0}};

// Measured like kThreeLaunches: a single launch, in tiles of 4 queries.
constexpr Measured kOneLaunch[] = {
    {2, 256, 128, 7.9, 13.7},          {2, 1024, 128, 10.3, 15.1},
    {2, 4096, 128, 15.8, 21.6},        {8, 256, 128, 12.7, 22.5},
    {8, 1024, 128, 16.2, 23.5},        {8, 4096, 128, 27.0, 30.5},
    {8, 16384, 128, 72.5, 69.0},       {32, 256, 128, 17.8, 42.8},
    {32, 1024, 128, 29.4, 41.0},       {32, 4096, 128, 75.9, 55.7},
    {32, 16384, 128, 366.0, 145.9},    {64, 256, 128, 25.2, 47.9},
    {64, 1024, 128, 46.9, 48.4},       {64, 4096, 128, 137.5, 75.1},
    {64, 16384, 128, 583.0, 278.9},    {128, 256, 128, 40.5, 74.3},
    {128, 1024, 128, 82.2, 71.3},      {128, 4096, 128, 262.9, 150.5},
    {128, 16384, 128, 1097.2, 567.0},  {256, 256, 128, 66.7, 130.2},
    {256, 1024, 128, 150.8, 125.5},    {256, 4096, 128, 513.4, 279.9},
    {256, 16384, 128, 2283.6, 1126.4}, {8, 1024, 1024, 21.0, 31.1},
    {8, 4096, 1024, 34.7, 44.1},       {64, 1024, 1024, 83.1, 121.6},
    {64, 4096, 1024, 165.5, 111.4},    {256, 1024, 1024, 289.1, 407.3},
    {256, 4096, 1024, 617.0, 422.5}};

TEST(CascadeRuleTest, ChoosesTheFasterFormOnAnH200) {
  for (const Measured& measured : kThreeLaunches) {
    const CascadeDecision decision =
        DecideOnAnH200(measured, /*tile_queries=*/0, H200Profile().cascade_launches);
    EXPECT_EQ(decision.use(), measured.cascade_us < measured.flat_us)
        << measured.num_rows << " rows, prefix " << measured.prefix << ": " << decision;
  }
  for (const Measured& measured : kOneLaunch) {
    const CascadeDecision decision =
        DecideOnAnH200(measured, /*tile_queries=*/4, H200Profile().cascade_costs);
    EXPECT_EQ(decision.use(), measured.cascade_us < measured.flat_us)
        << measured.num_rows << " rows, prefix " << measured.prefix << ", suffix "
        << measured.suffix << ": " << decision;
  }
}

// A later run with faster kernels (docs/performance.md, "A shared prefix", rows with 128 own keys):
// a single launch, in tiles of 4 queries. No cost is fitted to these times.
constexpr Measured kHeldOut[] = {
    {2, 256, 128, 8.1, 14.1},    {2, 1024, 128, 9.4, 14.6},    {2, 4096, 128, 14.8, 18.4},
    {2, 16384, 128, 28.0, 34.1}, {8, 256, 128, 9.5, 22.2},     {8, 1024, 128, 12.8, 23.4},
    {8, 4096, 128, 25.3, 28.8},  {8, 16384, 128, 76.8, 55.3},  {32, 256, 128, 13.1, 36.1},
    {32, 1024, 128, 25.5, 40.0}, {32, 4096, 128, 74.9, 58.9},  {32, 16384, 128, 279, 131},
    {64, 256, 128, 23.8, 59.1},  {64, 1024, 128, 50.5, 49.9},  {64, 4096, 128, 151, 91.6},
    {64, 16384, 128, 624, 250},  {128, 256, 128, 44.7, 92.0},  {128, 1024, 128, 94.5, 85.3},
    {128, 4096, 128, 295, 176},  {128, 16384, 128, 1232, 570}, {256, 256, 128, 80.0, 183},
    {256, 1024, 128, 180, 151},  {256, 4096, 128, 580, 363},   {256, 16384, 128, 2466, 1238}};

// The chosen form is at most 5 % slower than the faster form.
TEST(CascadeRuleTest, LosesAtMostFivePercentOnHeldOutTimes) {
  int num_used = 0;
  for (const Measured& measured : kHeldOut) {
    const CascadeDecision decision =
        DecideOnAnH200(measured, /*tile_queries=*/4, H200Profile().cascade_costs);
    const double chosen = decision.use() ? measured.cascade_us : measured.flat_us;
    EXPECT_LE(chosen, 1.05 * std::min(measured.cascade_us, measured.flat_us))
        << measured.num_rows << " rows, prefix " << measured.prefix << ": " << decision;
    num_used += decision.use();
  }
  EXPECT_GT(num_used, 8);  // cascade was faster for 12
}

// Two rows with 16,384 common keys: in one run a single launch saved 8 of 41 us, but the rule
// chooses flat.
TEST(CascadeRuleTest, TwoRowsStayFlatOnAnH200) {
  EXPECT_FALSE(DecideOnAnH200({2, 16384, 128, 41.3, 33.3}, 4, H200Profile().cascade_costs).use());
}

TEST(CascadeRuleTest, FlatDecisionsHaveAReason) {
  const auto reason = [](const CascadeShape& shape) { return ChooseCascade(shape, kCosts).reason; };
  CascadeShape shape = kShape;
  shape.num_rows = 1;
  EXPECT_EQ(reason(shape), CascadeReason::kFewRows);
  shape = kShape;
  shape.common_prefix_len = 0;
  EXPECT_EQ(reason(shape), CascadeReason::kNoPrefix);
  shape = kShape;
  shape.window_left = 1498;  // the last query of the longest row does not see token 0
  EXPECT_EQ(reason(shape), CascadeReason::kWindow);
  shape.window_left = 1499;
  EXPECT_EQ(reason(shape), CascadeReason::kUse);
  shape = kShape;
  shape.common_prefix_len = 16;
  EXPECT_EQ(reason(shape), CascadeReason::kNotQuicker);
}

TEST(CascadeRuleTest, LongerPrefixesNeverRevertToFlat) {
  for (int rows = 2; rows <= 256; rows *= 2) {
    bool used = false;
    for (int64_t prefix = 16; prefix <= 65536; prefix *= 2) {
      CascadeShape shape = kShape;
      shape.num_rows = shape.num_tokens = rows;
      shape.common_prefix_len = prefix;
      shape.num_suffix_keys = rows * 100;
      const bool use = ChooseCascade(shape, H200Profile().cascade_launches).use();
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
