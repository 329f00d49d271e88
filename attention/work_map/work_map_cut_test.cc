#include "reprise/attention/work_map/work_map_cut.h"

#include "gtest/gtest.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/attention/work_map/work_map_plan.h"
#include "reprise/base/dtype.h"

namespace reprise {
namespace {

WorkMapSumsOf SumsOfPlan(int max_rows, int max_query_len, int max_seq_len,
                         WorkMapMode mode = WorkMapMode::kBalanced) {
  return SumsOf(PlanWorkMap({.num_q_heads = 32,
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

TEST(WorkMapCutTest, ThirtyTwoBitsServeAServersBatches) {
  EXPECT_TRUE(SumsOfPlan(1, 1, 131072).is_narrow);
  EXPECT_TRUE(SumsOfPlan(256, 1, 131072).is_narrow);
  EXPECT_TRUE(SumsOfPlan(4, 2048, 8192).is_narrow);
  EXPECT_TRUE(SumsOfPlan(1, 16384, 131072).is_narrow);
}

TEST(WorkMapCutTest, LongCostsAndManyItemsTakeMore) {
  EXPECT_FALSE(SumsOfPlan(4096, 1, 1 << 22).is_narrow);
  EXPECT_FALSE(SumsOfPlan(1 << 16, 1, 64, WorkMapMode::kDeterministic).is_narrow);
}

TEST(WorkMapCutTest, EachCountHasRoomForAsManyAsThePlanAllows) {
  for (int max_rows : {1, 100, 256}) {
    for (int max_query_len : {1, 4, 60}) {
      const TileMap map = PlanWorkMap({.num_q_heads = 32,
                                       .num_kv_heads = 8,
                                       .head_dim_qk = 128,
                                       .head_dim_v = 128,
                                       .max_rows = max_rows,
                                       .max_tokens = max_rows * max_query_len,
                                       .max_query_len = max_query_len,
                                       .max_seq_len = 100000})
                              ->shape.main;
      const WorkMapSumsOf sums = SumsOf(map);
      ASSERT_TRUE(sums.is_narrow);
      EXPECT_LT(map.max_merges, int64_t{1} << sums.sums.partial_shift);
      EXPECT_LT(map.max_partials, int64_t{1} << (sums.sums.item_shift - sums.sums.partial_shift));
      EXPECT_LT(map.max_items, int64_t{1} << (31 - sums.sums.item_shift));
    }
  }
}

TEST(WorkMapCutTest, RangesOfManyRowsOfManyPiecesOrOfLongOnesAreMergedJointly) {
  TileMap map;
  map.least_joint_queries = 2;
  EXPECT_TRUE(MergesJointly(map, 2, 2, 128));
  EXPECT_FALSE(MergesJointly(map, 1, 2, 128));
  EXPECT_FALSE(MergesJointly(map, 1, kMostPiecesAtOnce, 4096));
  EXPECT_TRUE(MergesJointly(map, 1, kMostPiecesAtOnce + 1, 4096));
  EXPECT_TRUE(MergesJointly(map, 1, 16, 16 * kLeastJointKeys));
  EXPECT_FALSE(MergesJointly(map, 1, 16, 16 * kLeastJointKeys - 1));
  EXPECT_FALSE(MergesJointly(map, 1, kLeastJointPieces - 1, 1 << 20));
  EXPECT_TRUE(MergesJointly(map, 4, kMostJointPieces, 1 << 20));
  EXPECT_FALSE(MergesJointly(map, 4, kMostJointPieces + 1, 1 << 20));
  map.least_joint_queries = 0;
  EXPECT_FALSE(MergesJointly(map, 4, 16, 1 << 20));
}

TEST(WorkMapCutTest, KernelsThatBeginAheadMergeRangesOfEightRowsJointly) {
  const auto least_queries = [](int num_q_heads, int head_dim, DType dtype, int max_query_len) {
    return PlanWorkMap({.dtype = dtype,
                        .num_q_heads = num_q_heads,
                        .num_kv_heads = 2,
                        .head_dim_qk = head_dim,
                        .head_dim_v = head_dim,
                        .max_rows = 4,
                        .max_tokens = 4 * max_query_len,
                        .max_query_len = max_query_len,
                        .max_seq_len = 4096})
        ->shape.main.least_joint_queries;
  };
  EXPECT_EQ(least_queries(2, 128, DType::kBFloat16, 1), 8);
  EXPECT_EQ(least_queries(6, 128, DType::kFloat16, 1), 3);
  EXPECT_EQ(least_queries(8, 64, DType::kBFloat16, 8), 2);
  EXPECT_EQ(least_queries(32, 64, DType::kBFloat16, 1), 1);
  EXPECT_EQ(least_queries(8, 256, DType::kBFloat16, 1), 0);
  EXPECT_EQ(least_queries(8, 128, DType::kFloat32, 1), 0);
  EXPECT_EQ(least_queries(8, 128, DType::kBFloat16, 512), 0);
}

// Of `num_tiles` ranges of `steps` steps.
int LeastWidthOf(int num_tiles, int steps, int merges_per_step) {
  return LeastWidth<int32_t>(num_tiles * (steps * kStepCost + 4), num_tiles, /*tile_cost=*/4,
                             merges_per_step * kStepCost);
}

TEST(WorkMapCutTest, ColumnsAreAsWideAsItTakesToMergeTheirPieces) {
  EXPECT_EQ(LeastWidthOf(1, 64, 5), 3 + 1);  // 3.6, and half a step for the tile
  EXPECT_EQ(LeastWidthOf(1, 64, 20), 1 + 1);
  EXPECT_EQ(LeastWidthOf(7, 64, 20), 1 + 1);
  EXPECT_EQ(LeastWidthOf(0, 0, 20), 1 + 1);
}

TEST(WorkMapCutTest, ALittleWiderColumnsSaveALevelOfMerging) {
  EXPECT_EQ(LeastWidthOf(1, 128, 20), 4);  // 32 pieces and not 43
  EXPECT_EQ(LeastWidthOf(3, 128, 20), 4);
  EXPECT_EQ(LeastWidthOf(1, 192, 20), 6);      // 32 pieces and not 48
  EXPECT_EQ(LeastWidthOf(1, 256, 20), 3 + 1);  // 8 steps a piece would take longer
  // The cost of a tile as large as a step does not count among its steps.
  EXPECT_EQ(LeastWidth<int32_t>(256 * kStepCost + 8, 1, /*tile_cost=*/8, 5 * kStepCost), 8);
  EXPECT_EQ(LeastWidth<int32_t>(257 * kStepCost + 8, 1, /*tile_cost=*/8, 5 * kStepCost), 9);
  // Ranges of other maps may add their tiles to the count, but not to the cost.
  EXPECT_EQ(LeastWidth<int32_t>(8, 64, /*tile_cost=*/8, 5 * kStepCost), 1 + 1);
}

TEST(WorkMapCutTest, WholeRangesEndFirstIfTheyAreNearlyEven) {
  // 64 ranges over 33 columns of 256, or two to each of 32.
  const auto ends_first = [](int total_cost, int fullest, int percent) {
    return WholeRangesEndFirst<int32_t>(total_cost, /*num_tiles=*/64, /*ranges_of_column=*/2,
                                        fullest, /*filled_width=*/256, percent);
  };
  EXPECT_TRUE(ends_first(64 * 132, 264, 6));
  EXPECT_TRUE(ends_first(64 * 132, 264, 4));
  EXPECT_FALSE(ends_first(64 * 132, 264, 3));  // 3.1 % wider
  EXPECT_TRUE(ends_first(64 * 132, 271, 6));
  EXPECT_FALSE(ends_first(64 * 132, 272, 6));  // 6.25 %
  // Two steps above the mean, and more.
  EXPECT_TRUE(ends_first(64 * 126, 252 + 16, 6));
  EXPECT_FALSE(ends_first(64 * 126, 252 + 17, 6));
  // Beyond 32 bits.
  EXPECT_TRUE(WholeRangesEndFirst<int32_t>(1 << 30, 1000, 4, (1 << 30) / 250, (1 << 30) / 250, 1));
}

TEST(WorkMapCutTest, AColumnHasFewWholeRangesUnlessTheyAreLong) {
  const auto ends_first = [](int steps_of_range, int ranges_of_column) {
    const int cost = steps_of_range * kStepCost;
    return WholeRangesEndFirst<int32_t>(100 * cost, /*num_tiles=*/100, ranges_of_column,
                                        ranges_of_column * cost, ranges_of_column * cost, 6);
  };
  EXPECT_TRUE(ends_first(kStepsOfLongRange - 1, kMostWholeRanges));
  EXPECT_FALSE(ends_first(kStepsOfLongRange - 1, kMostWholeRanges + 1));
  EXPECT_TRUE(ends_first(kStepsOfLongRange, kMostLongWholeRanges));
  EXPECT_FALSE(ends_first(kStepsOfLongRange, kMostLongWholeRanges + 1));
}

}  // namespace
}  // namespace reprise
