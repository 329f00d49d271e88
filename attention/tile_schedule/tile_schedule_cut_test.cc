#include "reprise/attention/tile_schedule/tile_schedule_cut.h"

#include "gtest/gtest.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/dtype.h"

namespace reprise {
namespace {

TileScheduleSumsOf SumsOfPlan(int max_rows, int max_query_len, int max_seq_len,
                              TileScheduleMode mode = TileScheduleMode::kBalanced) {
  return SumsOf(PlanTileSchedule({.num_q_heads = 32,
                                  .num_kv_heads = 8,
                                  .head_dim_qk = 128,
                                  .head_dim_v = 128,
                                  .max_rows = max_rows,
                                  .max_tokens = max_rows * max_query_len,
                                  .max_query_len = max_query_len,
                                  .max_seq_len = max_seq_len,
                                  .mode = mode})
                    ->shape.main);
}

TEST(TileScheduleCutTest, TypicalServerBatchesFitIn32BitSums) {
  EXPECT_TRUE(SumsOfPlan(1, 1, 131072).is_narrow);
  EXPECT_TRUE(SumsOfPlan(256, 1, 131072).is_narrow);
  EXPECT_TRUE(SumsOfPlan(4, 2048, 8192).is_narrow);
  EXPECT_TRUE(SumsOfPlan(1, 16384, 131072).is_narrow);
}

TEST(TileScheduleCutTest, LargeCostsOrItemCountsNeed64BitSums) {
  EXPECT_FALSE(SumsOfPlan(4096, 1, 1 << 22).is_narrow);
  EXPECT_FALSE(SumsOfPlan(1 << 16, 1, 64, TileScheduleMode::kDeterministic).is_narrow);
}

TEST(TileScheduleCutTest, PackedCountsHoldThePlanCapacities) {
  for (int max_rows : {1, 100, 256}) {
    for (int max_query_len : {1, 4, 60}) {
      const KernelSchedule schedule = PlanTileSchedule({.num_q_heads = 32,
                                                        .num_kv_heads = 8,
                                                        .head_dim_qk = 128,
                                                        .head_dim_v = 128,
                                                        .max_rows = max_rows,
                                                        .max_tokens = max_rows * max_query_len,
                                                        .max_query_len = max_query_len,
                                                        .max_seq_len = 100000})
                                          ->shape.main;
      const TileScheduleSumsOf sums = SumsOf(schedule);
      ASSERT_TRUE(sums.is_narrow);
      EXPECT_LT(schedule.max_merges, int64_t{1} << sums.sums.partial_shift);
      EXPECT_LT(schedule.max_partials,
                int64_t{1} << (sums.sums.item_shift - sums.sums.partial_shift));
      EXPECT_LT(schedule.max_items, int64_t{1} << (31 - sums.sums.item_shift));
    }
  }
}

TEST(TileScheduleCutTest, LargeTilesAndTilesWithLongOrNumerousSplitsCombineCooperatively) {
  KernelSchedule schedule;
  schedule.min_joint_queries = 2;
  schedule.costs = {.joint_splits = 16, .joint_keys = 384};
  EXPECT_TRUE(CombinesCooperatively(schedule, 2, 2, 128));
  EXPECT_FALSE(CombinesCooperatively(schedule, 1, 2, 128));
  EXPECT_FALSE(CombinesCooperatively(schedule, 1, kMaxSplitsAtOnce, 4096));
  EXPECT_TRUE(CombinesCooperatively(schedule, 1, kMaxSplitsAtOnce + 1, 4096));
  EXPECT_TRUE(CombinesCooperatively(schedule, 1, 16, 16 * 384));
  EXPECT_FALSE(CombinesCooperatively(schedule, 1, 16, 16 * 384 - 1));
  EXPECT_FALSE(CombinesCooperatively(schedule, 1, 15, 1 << 20));
  EXPECT_TRUE(CombinesCooperatively(schedule, 4, kMaxJointSplits, 1 << 20));
  EXPECT_FALSE(CombinesCooperatively(schedule, 4, kMaxJointSplits + 1, 1 << 20));
  schedule.min_joint_queries = 0;
  EXPECT_FALSE(CombinesCooperatively(schedule, 4, 16, 1 << 20));
}

TEST(TileScheduleCutTest, DecodeKernelsCombineTilesOfEightRowsCooperatively) {
  const auto min_queries = [](int num_q_heads, int head_dim, DType dtype, int max_query_len) {
    return PlanTileSchedule({.dtype = dtype,
                             .num_q_heads = num_q_heads,
                             .num_kv_heads = 2,
                             .head_dim_qk = head_dim,
                             .head_dim_v = head_dim,
                             .max_rows = 4,
                             .max_tokens = 4 * max_query_len,
                             .max_query_len = max_query_len,
                             .max_seq_len = 4096})
        ->shape.main.min_joint_queries;
  };
  EXPECT_EQ(min_queries(2, 128, DType::kBFloat16, 1), 8);
  EXPECT_EQ(min_queries(6, 128, DType::kFloat16, 1), 3);
  EXPECT_EQ(min_queries(8, 64, DType::kBFloat16, 8), 2);
  EXPECT_EQ(min_queries(32, 64, DType::kBFloat16, 1), 1);
  EXPECT_EQ(min_queries(8, 256, DType::kBFloat16, 1), 0);
  EXPECT_EQ(min_queries(8, 128, DType::kFloat32, 1), 0);
  EXPECT_EQ(min_queries(8, 128, DType::kBFloat16, 512), 0);
}

CutCosts CostsOf(int tile, int combines_per_step) {
  return {
      .tile = tile, .combines_per_step = combines_per_step * kStepCost, .combine_level_steps = 2};
}

// MinWidth() for `num_tiles` Q tiles of `steps` KV tiles.
int MinWidthOf(int num_tiles, int steps, int combines_per_step) {
  return MinWidth<int32_t>(num_tiles * (steps * kStepCost + 4), num_tiles,
                           CostsOf(/*tile=*/4, combines_per_step));
}

TEST(TileScheduleCutTest, MinimumQueueWidthBalancesCombining) {
  EXPECT_EQ(MinWidthOf(1, 64, 5), 3 + 1);  // 3.6, and half a KV tile for the Q tile
  EXPECT_EQ(MinWidthOf(1, 64, 20), 1 + 1);
  EXPECT_EQ(MinWidthOf(7, 64, 20), 1 + 1);
  EXPECT_EQ(MinWidthOf(0, 0, 20), 1 + 1);
}

TEST(TileScheduleCutTest, SlightlyWiderQueuesSaveACombineLevel) {
  EXPECT_EQ(MinWidthOf(1, 128, 20), 4);  // 32 splits instead of 43
  EXPECT_EQ(MinWidthOf(3, 128, 20), 4);
  EXPECT_EQ(MinWidthOf(1, 192, 20), 6);      // 32 splits instead of 48
  EXPECT_EQ(MinWidthOf(1, 256, 20), 3 + 1);  // 8 KV tiles per split would take longer
  // The cost of a Q tile that costs one KV tile is not counted as a KV tile.
  EXPECT_EQ(MinWidth<int32_t>(256 * kStepCost + 8, 1, CostsOf(8, 5)), 8);
  EXPECT_EQ(MinWidth<int32_t>(257 * kStepCost + 8, 1, CostsOf(8, 5)), 9);
  // Q tiles of the other schedule may add to the count, but not to the cost.
  EXPECT_EQ(MinWidth<int32_t>(8, 64, CostsOf(8, 5)), 1 + 1);
}

constexpr CutCosts kEnds = {.tile = 4,
                            .merge = 12,
                            .border = 8,
                            .border_percent = 12,
                            .ctas_per_sm = 2,
                            .lone_percent = 56};

TEST(TileScheduleCutTest, StreamKBordersCostAMinimumOrAFractionOfTheWidth) {
  EXPECT_EQ(EndOfFilled(40, 1, kEnds), 48);
  EXPECT_EQ(EndOfFilled(1000, 1, kEnds), 1120);
  EXPECT_EQ(EndOfFilled(1000, 2, kEnds), 1060);
  EXPECT_EQ(EndOfFilled(1000, 4, kEnds), 1030);
  EXPECT_EQ(EndOfFilled(1000, 1000, kEnds), 1008);
  EXPECT_EQ(EndOfFilled(int64_t{1} << 30, 3, kEnds), (int64_t{1} << 30) * 104 / 100);
}

TEST(TileScheduleCutTest, LoneCtaOfAnSmIsFaster) {
  const RangeTotals ranges = {.with_keys = 16, .to_place = 16, .longest_steps = 25};
  EXPECT_EQ(EndOfSplits(25), 200);
  EXPECT_EQ(EndOfWholeRanges(ranges, 32, kEnds), 112);
  EXPECT_EQ(EndOfWholeRanges(ranges, 31, kEnds), 200);
  CutCosts one_cta = kEnds;
  one_cta.ctas_per_sm = 1;
  one_cta.lone_percent = 100;
  EXPECT_EQ(EndOfWholeRanges(ranges, 32, one_cta), 200);
}

// 132 CTAs, 8 heads.
TEST(TileScheduleCutTest, RoundRobinEndIsTheMaximumOfThreeCosts) {
  KernelSchedule schedule;
  schedule.num_ctas = 132;
  schedule.num_head_tiles = 8;
  schedule.costs.tile = 24;
  const auto end = [&](int64_t steps, int count, int longest, const LongRanges& long_ranges) {
    const RangeTotals ranges = {.with_keys = count, .to_place = count, .longest_steps = longest};
    return EndOfDealt(steps * kStepCost + int64_t{count} * 24, ranges, long_ranges, schedule);
  };
  // Fewer units than CTAs.
  EXPECT_EQ(end(10 * 20, 10, 20, {10, 10}), 20 * 8 + 24);
  // 160 units of equal length: 28 CTAs have two units and end last.
  EXPECT_EQ(end(20 * 20, 20, 20, {20, 20}), 20 * 184 * 8 / 132 + 184 * 104 / 132);
  // 264 units: two rounds. All Q tiles count as longer than 7/8 of the longest one, which decides
  // here: the total would allow less.
  EXPECT_EQ(end(33 * 10, 33, 20, {33, 33}), 2 * 184 * 7 / 8);
  // One long Q tile among short ones.
  EXPECT_EQ(end(100 + 15, 16, 100, {1, 1}), 100 * 8 + 24);
  // 33 Q tiles in two full rounds; lengths fall linearly from 32 to 0 KV tiles.
  EXPECT_EQ(end(33 * 16, 33, 32, {16, 4}), (33 * 16 * 8 + 33 * 24) * 8 / 132);
}

}  // namespace
}  // namespace reprise
