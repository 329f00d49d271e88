#include "reprise/attention/tile_schedule/tile_schedule_plan.h"

#include <cstdint>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/device_profile.h"
#include "reprise/attention/tile_schedule/tile_schedule_cut.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

TileScheduleOptions LlamaDecode() {
  return {.dtype = DType::kBFloat16,
          .num_q_heads = 32,
          .num_kv_heads = 8,
          .head_dim_qk = 128,
          .head_dim_v = 128,
          .max_rows = 64,
          .max_tokens = 64,
          .max_query_len = 1,
          .max_seq_len = 8192,
          .device = {.num_sms = 132},
          .costs = H200Profile().tile_schedule};
}

KernelSchedule ShapeOf(const TileScheduleOptions& options) {
  const absl::StatusOr<TileSchedulePlan> plan = PlanTileSchedule(options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan->shape.main;
}

TEST(TileSchedulePlanTest, TileFollowsTheRequestedMmaType) {
  TileScheduleOptions options = LlamaDecode();
  options.max_query_len = 8;
  EXPECT_GT(ShapeOf(options).tile_rows, 16);
  options.kernels.products = DType::kFloat32;  // CUDA cores
  EXPECT_EQ(ShapeOf(options).tile_rows, 16);
  EXPECT_EQ(ShapeOf(options).dtype, DType::kBFloat16);  // the type of q
}

TEST(TileSchedulePlanTest, SeparateAllocationsNeedTheSameTotalMemory) {
  const TileSchedulePlan plan = *PlanTileSchedule(LlamaDecode());
  EXPECT_GT(plan.schedule_bytes, 0);
  EXPECT_GT(plan.partial_bytes, plan.schedule_bytes);
  EXPECT_EQ(plan.schedule_bytes + plan.partial_bytes, plan.workspace_bytes);
  const auto place = [](intptr_t address) { return reinterpret_cast<void*>(address); };
  const KernelSchedule together = MakeTileSchedule(plan, place(1 << 20)).main;
  const KernelSchedule apart = MakeTileSchedule(plan, place(1 << 20), place(1 << 30)).main;
  EXPECT_EQ(apart.items, together.items);
  EXPECT_EQ(apart.arrivals, together.arrivals);
  const auto of = [](const float* partials) { return reinterpret_cast<intptr_t>(partials); };
  EXPECT_EQ(of(together.partial_lse), (1 << 20) + plan.schedule_bytes);
  EXPECT_EQ(of(apart.partial_lse), 1 << 30);
  EXPECT_EQ(of(apart.partial_out) - of(apart.partial_lse),
            of(together.partial_out) - of(together.partial_lse));
}

TEST(TileSchedulePlanTest, DecodeGetsSmallTilesAndOneQueuePerEightCtas) {
  const KernelSchedule shape = ShapeOf(LlamaDecode());
  EXPECT_EQ(shape.tile_rows, 16);
  EXPECT_EQ(shape.tile_queries, 1);  // max_query_len
  EXPECT_EQ(shape.num_head_tiles, 8);
  EXPECT_EQ(shape.heads_per_queue, 8);
  EXPECT_EQ(shape.num_queues, 33);  // 2 * 132 / 8
  EXPECT_EQ(shape.num_ctas, 264);
  EXPECT_EQ(shape.max_tiles, 64);
  EXPECT_EQ(shape.max_items, 64 + 32);  // one extra item per border between queues
  EXPECT_EQ(shape.max_merges, 32);
  EXPECT_EQ(shape.max_partials, 64);
}

TEST(TileSchedulePlanTest, PrefillGetsLargeTilesForAGroupOfHeads) {
  TileScheduleOptions options = LlamaDecode();
  options.max_tokens = 1000;
  options.max_query_len = 500;
  const KernelSchedule shape = ShapeOf(options);
  EXPECT_EQ(shape.tile_rows, 128);
  EXPECT_EQ(shape.tile_queries, 32);                  // for 4 heads
  EXPECT_EQ(shape.max_tiles, 64 + (1000 - 64) / 32);  // 64 rows of at least one token
}

TEST(TileSchedulePlanTest, VerifyRowsOfFourQueriesStayInSmallTiles) {
  TileScheduleOptions options = LlamaDecode();
  options.max_query_len = 4;
  options.max_tokens = 256;
  const KernelSchedule shape = ShapeOf(options);
  EXPECT_EQ(shape.tile_rows, 16);
  EXPECT_EQ(shape.tile_queries, 4);
  EXPECT_EQ(shape.max_tiles, 64);
}

TEST(TileSchedulePlanTest, TileSizeFollowsTheNumberOfDrafts) {
  TileScheduleOptions options = LlamaDecode();
  options.max_query_len = 5;  // 20 query rows
  options.max_tokens = 320;
  const TileSchedule schedule = PlanTileSchedule(options)->shape;
  EXPECT_EQ(schedule.main.tile_rows, 32);
  EXPECT_EQ(schedule.main.tile_queries, 5);
  EXPECT_EQ(schedule.main.num_head_tiles, 8);
  EXPECT_EQ(schedule.main.num_ctas, 264);  // two per SM, as in a decode
  EXPECT_FALSE(schedule.main.may_be_dealt);
  EXPECT_EQ(schedule.short_rows.tile_rows, 16);
  options.max_query_len = 8;  // 32
  EXPECT_EQ(ShapeOf(options).tile_rows, 32);
  options.max_query_len = 9;  // 36
  EXPECT_EQ(ShapeOf(options).tile_rows, 128);
}

TEST(TileSchedulePlanTest, DecodeTileFollowsTheGroupSize) {
  TileScheduleOptions options = LlamaDecode();
  options.num_kv_heads = 1;  // a group of 32
  const TileSchedule schedule = PlanTileSchedule(options)->shape;
  EXPECT_EQ(schedule.main.tile_rows, 32);
  EXPECT_EQ(schedule.main.num_head_tiles, 1);
  EXPECT_FALSE(schedule.has_short_rows());
  options.max_query_len = options.max_tokens = 500;
  const TileSchedule mixed = PlanTileSchedule(options)->shape;
  EXPECT_EQ(mixed.main.tile_rows, 128);
  EXPECT_EQ(mixed.short_rows.tile_rows, 32);
  EXPECT_EQ(mixed.short_rows.max_query_len, 1);
}

TEST(TileSchedulePlanTest, PlansWithLongRowsHaveASecondScheduleForShortRows) {
  TileScheduleOptions options = LlamaDecode();
  options.max_tokens = 2048;
  options.max_query_len = 2048;
  const TileSchedule shape = PlanTileSchedule(options)->shape;
  ASSERT_TRUE(shape.has_short_rows());
  EXPECT_EQ(shape.main.tile_rows, 128);
  EXPECT_EQ(shape.main.max_rows, 64);  // any row may be long
  EXPECT_EQ(shape.short_rows.tile_rows, 16);
  EXPECT_EQ(shape.short_rows.max_query_len, 4);  // for 4 heads
  EXPECT_EQ(shape.short_rows.max_tokens, 256);
  EXPECT_EQ(shape.short_rows.num_queues, 33);
  EXPECT_EQ(shape.short_rows.max_items, 64 + 32);
  EXPECT_EQ(shape.short_rows.max_partials, 64 * 4);
}

TEST(TileSchedulePlanTest, HasOneScheduleIfOneTileFitsAllRows) {
  TileScheduleOptions options = LlamaDecode();
  EXPECT_FALSE(PlanTileSchedule(options)->shape.has_short_rows());
  options.max_query_len = 4;  // for 4 heads
  EXPECT_FALSE(PlanTileSchedule(options)->shape.has_short_rows());
  options.max_query_len = 500;
  options.dtype = DType::kFloat32;  // its tiles are small
  EXPECT_FALSE(PlanTileSchedule(options)->shape.has_short_rows());
  options.dtype = DType::kBFloat16;
  options.num_q_heads = 100;
  options.num_kv_heads = 1;  // a query of 100 heads needs the largest tile
  EXPECT_FALSE(PlanTileSchedule(options)->shape.has_short_rows());
  options.num_q_heads = 32;
  options.num_kv_heads = 8;
  options.shared_prefix = SharedPrefix::kTaken;
  EXPECT_FALSE(PlanTileSchedule(options)->shape.has_short_rows());
}

TEST(TileSchedulePlanTest, DeterministicModeAssignsRowsByRow) {
  TileScheduleOptions options = LlamaDecode();
  EXPECT_EQ(PlanTileSchedule(options)->shape.row_assignment, RowAssignment::kByBatch);
  options.mode = TileScheduleMode::kDeterministic;
  EXPECT_EQ(PlanTileSchedule(options)->shape.row_assignment, RowAssignment::kByRow);
}

TEST(TileSchedulePlanTest, JoinLimitScalesWithTheNumberOfCtas) {
  TileScheduleOptions options = LlamaDecode();  // 8 KV heads
  options.max_tokens = options.max_query_len = 2048;
  options.costs->joined_steps = 3;
  options.costs->joined_steps_beside_prompts = 6;
  const auto max_steps = [&] { return PlanTileSchedule(options)->shape.max_joined_steps; };
  EXPECT_EQ(max_steps(), 3 * 132 / 8);
  EXPECT_EQ(PlanTileSchedule(options)->shape.max_joined_steps_beside_prompts, 6 * 132 / 8);
  options.head_dim_qk = options.head_dim_v = 64;
  EXPECT_EQ(max_steps(), 3 * 132 / 8);
  EXPECT_EQ(PlanTileSchedule(options)->shape.max_joined_steps_beside_prompts, 0);
  options.head_dim_qk = options.head_dim_v = 128;
  options.device.num_sms = 4;
  EXPECT_EQ(max_steps(), 1);
  options.costs->joined_steps = 0;
  EXPECT_EQ(max_steps(), 0);
  options.costs->joined_steps = 3;
  options.device.max_shared_bytes = 163 * 1024;  // no warpgroup kernels
  EXPECT_EQ(max_steps(), 0);
  options.device.max_shared_bytes = 227 * 1024;
  EXPECT_EQ(max_steps(), 1);
  options.head_dim_qk = options.head_dim_v = 512;  // no warpgroup kernels either
  EXPECT_EQ(max_steps(), 0);
  options.head_dim_qk = options.head_dim_v = 128;
  options.mode = TileScheduleMode::kDeterministic;
  EXPECT_EQ(max_steps(), 0);
}

TEST(TileSchedulePlanTest, SchedulesOfShortAndLongRowsDoNotOverlap) {
  TileScheduleOptions options = LlamaDecode();
  options.max_tokens = 2048;
  options.max_query_len = 2048;
  const TileSchedulePlan plan = *PlanTileSchedule(options);
  const TileSchedule schedule = MakeTileSchedule(plan, reinterpret_cast<void*>(intptr_t{1} << 20));
  const auto of = [](const void* part) { return reinterpret_cast<intptr_t>(part); };
  EXPECT_GE(of(schedule.short_rows.counts),
            of(schedule.main.scratch) + TileScheduleScratch::Bytes(schedule.main));
  EXPECT_GE(of(schedule.main.partial_lse),
            of(schedule.short_rows.scratch) + TileScheduleScratch::Bytes(schedule.short_rows));
  EXPECT_GE(of(schedule.short_rows.partial_lse),
            of(schedule.main.partial_out) + int64_t{schedule.main.max_partials} * 32 * 128 * 4);
  EXPECT_LE(of(schedule.short_rows.partial_out) +
                int64_t{schedule.short_rows.max_partials} * 32 * 128 * 4,
            (intptr_t{1} << 20) + plan.workspace_bytes);
}

TEST(TileSchedulePlanTest, GroupsLargerThanATileGetSeveralHeadTiles) {
  TileScheduleOptions options = LlamaDecode();
  options.num_q_heads = 135;
  options.num_kv_heads = 1;
  const KernelSchedule shape = ShapeOf(options);
  EXPECT_EQ(shape.tile_rows, 128);
  EXPECT_EQ(shape.tile_queries, 1);
  EXPECT_EQ(shape.num_head_tiles, 2);  // 128 heads, and 7 heads
}

TEST(TileSchedulePlanTest, MoreHeadsThanCtasUseOneQueueWithoutSplits) {
  TileScheduleOptions options = LlamaDecode();
  options.num_q_heads = options.num_kv_heads = 500;
  const KernelSchedule shape = ShapeOf(options);
  EXPECT_EQ(shape.heads_per_queue, 264);
  EXPECT_EQ(shape.num_queues, 1);
  EXPECT_EQ(shape.max_items, 64);
  EXPECT_EQ(shape.max_partials, 0);
}

TEST(TileSchedulePlanTest, RowsOfOneKvTileAreNeverSplit) {
  TileScheduleOptions options = LlamaDecode();
  options.max_seq_len = kWorkStepKeys;
  EXPECT_EQ(ShapeOf(options).max_partials, 0);
  options.max_seq_len = kWorkStepKeys + 1;
  EXPECT_EQ(ShapeOf(options).max_partials, 64);
}

TEST(TileSchedulePlanTest, MlaHeadsGetMlaTiles) {
  TileScheduleOptions options = LlamaDecode();
  options.num_q_heads = 128;
  options.num_kv_heads = 1;
  options.head_dim_qk = 576;
  options.head_dim_v = 512;
  const KernelSchedule shape = ShapeOf(options);
  EXPECT_EQ(shape.tile_rows, 64);
  EXPECT_EQ(shape.num_head_tiles, 2);
  EXPECT_EQ(shape.num_queues, 66);  // one CTA per SM
  options.num_q_heads = 16;
  EXPECT_EQ(ShapeOf(options).tile_rows, 16);
}

TEST(TileSchedulePlanTest, HeadDim512HasTilesForEveryType) {
  TileScheduleOptions options = LlamaDecode();  // groups of 4
  options.head_dim_qk = options.head_dim_v = 512;
  KernelSchedule shape = ShapeOf(options);
  EXPECT_EQ(shape.tile_rows, 16);
  EXPECT_EQ(shape.tile_queries, 1);
  EXPECT_EQ(shape.num_ctas / shape.heads_per_queue, shape.num_queues);
  options.max_query_len = 64;
  shape = ShapeOf(options);
  EXPECT_EQ(shape.tile_rows, 64);
  EXPECT_EQ(shape.tile_queries, 16);
  options.dtype = DType::kFloat32;
  EXPECT_EQ(ShapeOf(options).tile_rows, 16);
}

TEST(TileSchedulePlanTest, TilesForHeadDimsUpTo256DependOnTheCardAndTheTier) {
  TileScheduleOptions options = LlamaDecode();  // groups of 4
  options.head_dim_qk = 192;
  options.max_query_len = 64;
  KernelSchedule shape = ShapeOf(options);
  EXPECT_EQ(shape.tile_rows, 128);
  EXPECT_EQ(shape.tile_queries, 32);
  EXPECT_EQ(shape.num_head_tiles, 8);
  EXPECT_EQ(shape.heads_per_queue, 8);
  EXPECT_EQ(shape.num_queues, 16);  // one CTA per SM
  EXPECT_EQ(shape.num_ctas, 128);
  EXPECT_FALSE(shape.may_be_dealt);
  options.head_dim_qk = options.head_dim_v = 256;
  EXPECT_EQ(ShapeOf(options).tile_rows, 128);
  EXPECT_EQ(ShapeOf(options).num_head_tiles, 8);
  options.shared_prefix = SharedPrefix::kTaken;
  EXPECT_EQ(ShapeOf(options).tile_rows, 128);
  options.shared_prefix = SharedPrefix::kIgnored;
  // On other cards, and for calls that the tuned kernels do not support.
  for (const KernelChoice& kernels : {KernelChoice{}, KernelChoice{.max_tier = 1}}) {
    options.kernels = kernels;
    options.device.compute_capability = kernels.max_tier == 1 ? 90 : 80;
    shape = ShapeOf(options);
    EXPECT_EQ(shape.tile_rows, 64);
    EXPECT_EQ(shape.tile_queries, 16);
    EXPECT_EQ(shape.num_head_tiles, 8);
    EXPECT_EQ(shape.num_queues, 33);  // two CTAs per SM
  }
  options.kernels.max_tier = 0;
  EXPECT_THAT(std::string(PlanTileSchedule(options).status().message()),
              HasSubstr("kernels.max_tier of TileScheduleOptions: expected >= 1, got 0"));
}

TEST(TileSchedulePlanTest, SmallTilesOfHeadDim256UseGeneralKernels) {
  TileScheduleOptions options = LlamaDecode();
  options.head_dim_qk = options.head_dim_v = 256;
  options.max_query_len = 16;
  KernelSchedule shape = ShapeOf(options);
  EXPECT_EQ(shape.tile_rows, 64);
  EXPECT_EQ(shape.tile_queries, 16);
  EXPECT_EQ(shape.num_head_tiles, 8);
  options.num_kv_heads = 1;
  options.num_q_heads = 135;  // two tiles of 128 rows per query
  shape = ShapeOf(options);
  EXPECT_EQ(shape.tile_rows, 128);
  EXPECT_EQ(shape.num_head_tiles, 2);
}

TEST(TileSchedulePlanTest, LargeHeadsUseTheDecodeTileOnCardsWithLittleSharedMemory) {
  constexpr int kSmallCard = 99 * 1024;  // compute capability 8.6 and 8.9
  constexpr int kA100 = 163 * 1024;
  for (const int head_dim : {257, 320, 512}) {
    TileScheduleOptions options = LlamaDecode();
    options.head_dim_qk = options.head_dim_v = head_dim;
    options.max_tokens = 4096;
    options.max_query_len = 512;
    for (const int enough : {0, kA100}) {
      options.device.max_shared_bytes = enough;
      const TileSchedule schedule = PlanTileSchedule(options)->shape;
      EXPECT_EQ(schedule.main.tile_rows, 64);
      EXPECT_EQ(schedule.short_rows.tile_rows, 16);
    }
    options.device.max_shared_bytes = kSmallCard;
    const TileSchedule schedule = PlanTileSchedule(options)->shape;
    EXPECT_EQ(schedule.main.tile_rows, 16);
    EXPECT_EQ(schedule.main.tile_queries, 4);
    EXPECT_EQ(schedule.main.max_query_len, 512);
    EXPECT_EQ(schedule.short_rows.max_items, 0);
  }
  // Smaller heads have large tiles on every card.
  TileScheduleOptions options = LlamaDecode();
  options.head_dim_qk = options.head_dim_v = 256;
  options.max_tokens = 4096;
  options.max_query_len = 512;
  options.device.max_shared_bytes = kSmallCard;
  EXPECT_EQ(ShapeOf(options).tile_rows, 64);
  options.device.max_shared_bytes = -1;
  EXPECT_THAT(std::string(PlanTileSchedule(options).status().message()),
              HasSubstr("device.max_shared_bytes of TileScheduleOptions: expected >= 0, got -1"));
}

// Tiles of 128 rows: 32 rows of 4 heads share one pass over the prefix.
TEST(TileSchedulePlanTest, SharedPrefixUsesLargeTilesAndOnePartialPerToken) {
  TileScheduleOptions options = LlamaDecode();
  options.shared_prefix = SharedPrefix::kTaken;
  const KernelSchedule shape = ShapeOf(options);
  EXPECT_EQ(shape.tile_rows, 128);
  EXPECT_EQ(shape.tile_queries, 32);
  EXPECT_EQ(shape.max_shared_tiles, 2);
  EXPECT_EQ(shape.max_tiles, 64 + 2);
  EXPECT_EQ(shape.num_queues, 16);  // 132 / 8
  EXPECT_EQ(shape.max_items, 66 + 15);
  EXPECT_EQ(shape.max_merges, 64);
  EXPECT_EQ(shape.max_partials, 64 + (15 + 2) * 32);
}

// The decode tile: 16 query rows are 4 rows of 4 heads, in 33 queues of 8 heads.
TEST(TileSchedulePlanTest, SharedPrefixWithSmallTilesUsesTheDecodeTile) {
  TileScheduleOptions options = LlamaDecode();
  options.shared_prefix = SharedPrefix::kTaken;
  options.shared_tiles = SharedTiles::kSmall;
  const KernelSchedule shape = ShapeOf(options);
  options.shared_prefix = SharedPrefix::kIgnored;
  EXPECT_EQ(shape.tile_rows, ShapeOf(options).tile_rows);
  EXPECT_EQ(shape.num_ctas, ShapeOf(options).num_ctas);
  EXPECT_EQ(ShapeOf(options).tile_queries, 1);
  EXPECT_EQ(shape.tile_queries, 4);
  EXPECT_EQ(shape.max_shared_tiles, 16);
  EXPECT_EQ(shape.max_tiles, 64 + 16);
  EXPECT_EQ(shape.max_items, 80 + 32);
  EXPECT_EQ(shape.max_partials, 64 + (32 + 16) * 4);
}

TEST(TileSchedulePlanTest, DeterministicModeBoundsTheSplitsOfARow) {
  TileScheduleOptions options = LlamaDecode();
  options.mode = TileScheduleMode::kDeterministic;
  EXPECT_EQ(ShapeOf(options).max_partials, 64 * 16);
  options.max_seq_len = 2048;  // 32 KV tiles: at most 4 splits of 8
  EXPECT_EQ(ShapeOf(options).max_partials, 64 * 4);
  EXPECT_EQ(ShapeOf(options).max_items, 64 * 4);
}

TEST(TileSchedulePlanTest, DraftRowsAddTheSplitsOfTheirQueries) {
  TileScheduleOptions options = LlamaDecode();
  options.mode = TileScheduleMode::kDeterministic;
  options.max_tokens = options.max_query_len = 8192;
  options.decode_query_len = 17;
  const TileSchedule schedule = PlanTileSchedule(options)->shape;
  EXPECT_EQ(schedule.main.decode_query_len, 1);
  EXPECT_EQ(schedule.short_rows.max_query_len, 17);
  EXPECT_EQ(schedule.short_rows.decode_query_len, 17);
  EXPECT_EQ(schedule.short_rows.tile_rows, 16);
  EXPECT_EQ(schedule.short_rows.max_partials, 2 * schedule.short_rows.num_queues * 16);
  options.dtype = DType::kFloat32;  // one tile for all rows
  const TileSchedule one = PlanTileSchedule(options)->shape;
  EXPECT_FALSE(one.has_short_rows());
  EXPECT_EQ(one.main.decode_query_len, 17);
  options.mode = TileScheduleMode::kBalanced;
  EXPECT_EQ(PlanTileSchedule(options)->shape.main.decode_query_len, 1);
}

// MLA partials are large: 128 heads of 512 floats.
TEST(TileSchedulePlanTest, PartialsOfDraftsAreCappedPerQueue) {
  TileScheduleOptions options = {.num_q_heads = 128,
                                 .num_kv_heads = 1,
                                 .head_dim_qk = 576,
                                 .head_dim_v = 512,
                                 .max_rows = 256,
                                 .max_tokens = 8192,
                                 .max_query_len = 8192,
                                 .max_seq_len = 32768,
                                 .mode = TileScheduleMode::kDeterministic};
  const TileSchedulePlan plain = *PlanTileSchedule(options);
  options.decode_query_len = 5;
  const TileSchedulePlan drafts = *PlanTileSchedule(options);
  const KernelSchedule& schedule = drafts.shape.main;  // a kernel tile holds half of the heads
  EXPECT_FALSE(drafts.shape.has_short_rows());
  EXPECT_EQ(schedule.queue_partials, 16);
  EXPECT_EQ(schedule.max_partials, 2 * schedule.num_queues * 16);
  EXPECT_EQ(drafts.partial_bytes, plain.partial_bytes);
  // Separate partials for each Q tile would be more than 256 * 5 * 16 partials.
  EXPECT_EQ(schedule.max_partials, 2112);
  EXPECT_EQ(drafts.partial_bytes, int64_t{2112} * 128 * (512 + 1) * 4);
  // If rows need fewer partials, Q tiles do not share them.
  options.max_rows = 1;
  options.max_query_len = 5;
  EXPECT_EQ(PlanTileSchedule(options)->shape.main.queue_partials, 0);
  EXPECT_EQ(PlanTileSchedule(options)->shape.main.max_partials, 5 * 16);
  options.max_rows = 256;
  options.mode = TileScheduleMode::kBalanced;
  EXPECT_EQ(PlanTileSchedule(options)->shape.main.queue_partials, 0);
}

TEST(TileSchedulePlanTest, PartialsAreCappedPerQueueForEveryHeadDim) {
  TileScheduleOptions options = LlamaDecode();
  options.mode = TileScheduleMode::kDeterministic;
  options.max_tokens = options.max_query_len = 8192;
  options.device.num_sms = 4;
  for (const int head_dim : {64, 128, 192, 256, 512}) {
    options.head_dim_qk = options.head_dim_v = head_dim;
    const KernelSchedule schedule = PlanTileSchedule(options)->shape.main;
    EXPECT_EQ(schedule.num_head_tiles, schedule.num_kv_heads);
    EXPECT_EQ(schedule.queue_partials, 16 * schedule.tile_queries);
    EXPECT_EQ(schedule.max_partials, 2 * schedule.num_queues * 16 * schedule.tile_queries);
  }
}

TEST(TileSchedulePlanTest, WorkspaceLayoutMatchesItsSize) {
  const absl::StatusOr<TileSchedulePlan> plan = PlanTileSchedule(LlamaDecode());
  ASSERT_TRUE(plan.ok());
  auto* const base = reinterpret_cast<char*>(uintptr_t{1} << 20);
  const KernelSchedule schedule = MakeTileSchedule(*plan, base).main;
  // The out partials come last: 64 partials x 32 heads x 128 floats.
  EXPECT_EQ(reinterpret_cast<char*>(schedule.partial_out) + int64_t{64} * 32 * 128 * 4,
            base + plan->workspace_bytes);
  EXPECT_EQ(reinterpret_cast<char*>(schedule.counts), base);
  for (const void* part :
       {static_cast<const void*>(schedule.items), static_cast<const void*>(schedule.scratch),
        static_cast<const void*>(schedule.partial_out)}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(part) % 256, 0u);
  }
}

TEST(TileSchedulePlanTest, NoRowsNeedNoItems) {
  TileScheduleOptions options = LlamaDecode();
  options.max_rows = options.max_tokens = 0;
  EXPECT_EQ(ShapeOf(options).max_tiles, 0);
}

TEST(TileSchedulePlanTest, RejectsInvalidOptionsByName) {
  const auto message = [](auto change) {
    TileScheduleOptions options = LlamaDecode();
    change(options);
    return std::string(PlanTileSchedule(options).status().message());
  };
  EXPECT_THAT(
      message([](TileScheduleOptions& o) { o.num_kv_heads = 5; }),
      HasSubstr("num_q_heads of TileScheduleOptions: expected a multiple of num_kv_heads 5, "
                "got 32"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.num_kv_heads = 0; }),
              HasSubstr("num_kv_heads"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.max_query_len = 0; }),
              HasSubstr("max_query_len"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.max_rows = -1; }), HasSubstr("max_rows"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.device.num_sms = 0; }), HasSubstr("num_sms"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.max_splits = 0; }), HasSubstr("max_splits"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.max_splits = 17; }),
              HasSubstr("max_splits of TileScheduleOptions: expected <= 16, got 17"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.head_dim_qk = 577; }), HasSubstr("577"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.head_dim_v = 513; }), HasSubstr("513"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.dtype = DType::kFloat64; }),
              HasSubstr("float64"));
  EXPECT_THAT(message([](TileScheduleOptions& o) {
                o.mode = TileScheduleMode::kDeterministic;
                o.shared_prefix = SharedPrefix::kTaken;
              }),
              HasSubstr("shared_prefix"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.max_rows = o.max_tokens = 1 << 24; }),
              HasSubstr("max_tokens"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.costs->tile = -1; }),
              HasSubstr("costs.tile of TileScheduleOptions: expected >= 0, got -1"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.costs->decode_tile = -1; }),
              HasSubstr("costs.decode_tile"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.costs->warpgroup_tile = 1 << 30; }),
              HasSubstr("costs.warpgroup_tile of TileScheduleOptions: expected <= 65536"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.costs->combines_per_step = 0; }),
              HasSubstr("costs.combines_per_step of TileScheduleOptions: expected >= 1, got 0"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.costs->joined_steps = -1; }),
              HasSubstr("costs.joined_steps of TileScheduleOptions: expected >= 0, got -1"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.costs->joined_steps_beside_prompts = -1; }),
              HasSubstr("costs.joined_steps_beside_prompts"));
  EXPECT_THAT(message([](TileScheduleOptions& o) { o.costs = TileScheduleCosts(); }),
              HasSubstr("costs.combines_per_step_few_rows"));
}

TEST(TileSchedulePlanTest, CostsFollowTheChosenTile) {
  TileScheduleOptions options = LlamaDecode();  // groups of 4: tiles of 16 rows, with 4 live rows
  options.costs = TileScheduleCosts{.decode_tile = 1,
                                    .tile = 2,
                                    .warpgroup_tile = 3,
                                    .border = 4,
                                    .border_percent = 5,
                                    .warpgroup_border = 6,
                                    .combines_per_step_few_rows = 7,
                                    .combines_per_step = 11,
                                    .joint_rows = 8,
                                    .joint_splits = 16};
  EXPECT_EQ(ShapeOf(options).costs.tile, 1);
  EXPECT_EQ(ShapeOf(options).costs.combines_per_step, 7 * kStepCost);
  options.max_query_len = 4;  // 16 live rows, combined cooperatively
  EXPECT_EQ(ShapeOf(options).costs.tile, 1);
  EXPECT_EQ(ShapeOf(options).costs.combines_per_step, 7 * kStepCost / 2);
  options.max_query_len = 64;  // 128 rows
  EXPECT_EQ(ShapeOf(options).tile_rows, 128);
  EXPECT_EQ(ShapeOf(options).costs.tile, 3);
  EXPECT_EQ(ShapeOf(options).costs.combines_per_step, 7 * kStepCost / 2);
  options.head_dim_qk = options.head_dim_v = 256;
  EXPECT_EQ(ShapeOf(options).tile_rows, 128);
  EXPECT_EQ(ShapeOf(options).costs.tile, 3);
  options.head_dim_qk = options.head_dim_v = 512;
  EXPECT_EQ(ShapeOf(options).tile_rows, 64);
  EXPECT_EQ(ShapeOf(options).costs.tile, 2);
  EXPECT_EQ(ShapeOf(options).costs.combines_per_step, 11 * kStepCost);
}

TEST(TileSchedulePlanTest, CostsDefaultToTheDeviceProfile) {
  TileScheduleOptions options = LlamaDecode();
  options.costs.reset();
  const TileScheduleCosts of_device = ProfileOf(options.device).tile_schedule;
  EXPECT_EQ(ShapeOf(options).costs.tile, of_device.decode_tile);
  EXPECT_EQ(ShapeOf(options).costs.merge, of_device.merge);
  options.costs = of_device;
  options.costs->decode_tile += 1;
  EXPECT_EQ(ShapeOf(options).costs.tile, of_device.decode_tile + 1);
}

// A field that is missing in the table would not be checked. A static_assert checks the table's
// size.
TEST(TileSchedulePlanTest, CostTableNamesEachFieldOnce) {
  TileScheduleCosts costs;
  int value = 1;
  for (const TileScheduleCostField& cost : TileScheduleCostFields()) costs.*cost.field = value++;
  value = 1;
  std::set<absl::string_view> names;
  for (const TileScheduleCostField& cost : TileScheduleCostFields()) {
    EXPECT_EQ(costs.*cost.field, value++) << cost.name;
    EXPECT_TRUE(names.insert(cost.name).second) << cost.name;
  }
  for (const TileScheduleCostField& cost : TileScheduleCostFields()) {
    TileScheduleOptions options = LlamaDecode();
    (*options.costs).*cost.field = cost.least - 1;
    EXPECT_THAT(PlanTileSchedule(options).status().message(),
                HasSubstr(absl::StrCat("costs.", cost.name,
                                       " of TileScheduleOptions: expected >= ", cost.least)));
  }
}

// The profile's clusters_of, divided by 8 heads.
TEST(TileSchedulePlanTest, HeadsDivideTheResidentClusters) {
  const KernelSchedule schedule = ShapeOf(LlamaDecode());
  EXPECT_THAT(schedule.clusters_of, ::testing::ElementsAre(0, 0, 16, 10, 7, 5, 4, 3, 3));
  EXPECT_EQ(QueuesInUse(schedule, 1), 33);
  EXPECT_EQ(QueuesInUse(schedule, 2), 32);
  EXPECT_EQ(QueuesInUse(schedule, 4), 28);
  EXPECT_EQ(QueuesInUse(schedule, 6), 24);
  EXPECT_EQ(QueuesInUse(schedule, 8), 24);
  // 17 rows do not have two queues each. 11 rows have three.
  EXPECT_EQ(ClusterOf(schedule, 17, -1), 1);
  EXPECT_EQ(ClusterOf(schedule, 16, -1), 2);
  EXPECT_EQ(ClusterOf(schedule, 12, -1), 2);
  EXPECT_EQ(ClusterOf(schedule, 11, -1), 1);
  // A split of two KV tiles is not split further.
  EXPECT_EQ(ClusterOf(schedule, 8, 127), 1);
  EXPECT_EQ(ClusterOf(schedule, 8, 128), 2);
  EXPECT_EQ(ClusterOf(schedule, 0, -1), 1);
  // Fewer SMs have fewer queues.
  TileScheduleOptions small = LlamaDecode();
  small.device.num_sms = 20;
  EXPECT_THAT(ShapeOf(small).clusters_of, ::testing::ElementsAre(0, 0, 2, 1, 1, 1, 0, 0, 0));
}

TEST(TileSchedulePlanTest, OnlyDecodeKernelsHaveClusters) {
  const auto has_clusters = [](const TileScheduleOptions& options) {
    return ShapeOf(options).clusters_of[2] > 0;
  };
  const TileScheduleOptions decode = LlamaDecode();
  EXPECT_TRUE(has_clusters(decode));
  TileScheduleOptions other = decode;
  other.mode = TileScheduleMode::kDeterministic;
  EXPECT_FALSE(has_clusters(other));
  other = decode;
  // builder and attention may be called with different numbers of rows
  other.row_assignment = RowAssignment::kByRow;
  EXPECT_FALSE(has_clusters(other));
  other = decode;
  other.device.max_shared_bytes = 99 * 1024;
  EXPECT_FALSE(has_clusters(other));
  other = decode;
  other.dtype = DType::kFloat32;
  EXPECT_FALSE(has_clusters(other));
  other = decode;
  other.head_dim_qk = other.head_dim_v = 256;
  EXPECT_FALSE(has_clusters(other));
  other = decode;
  other.max_query_len = 8;  // kernel tiles of 32 rows
  EXPECT_FALSE(has_clusters(other));
}

}  // namespace
}  // namespace reprise
