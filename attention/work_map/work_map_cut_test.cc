#include "attention/work_map/work_map_cut.h"

#include "attention/work_map/work_map_plan.h"
#include "gtest/gtest.h"

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

}  // namespace
}  // namespace reprise
