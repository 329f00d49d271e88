#include "reprise/attention/tile_schedule/tile_schedule_build.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/host_tile_schedule.h"
#include "reprise/attention/testing/tile_schedule_rows.h"
#include "reprise/attention/tile_schedule/tile_schedule_check.h"
#include "reprise/attention/tile_schedule/tile_schedule_cut.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

// Checks each number of the worked example in attention/tile_schedule/tile_schedule.h.
TEST(TileScheduleBuildTest, MatchesTheWorkedExampleOfTheHeader) {
  Rows rows({500, 64, 1000, 100, 300});
  HostTileSchedule work({.num_q_heads = 1,
                         .num_kv_heads = 1,
                         .head_dim_qk = 128,
                         .head_dim_v = 128,
                         .max_rows = 5,
                         .max_tokens = 5,
                         .max_query_len = 1,
                         .max_seq_len = 1000,
                         .device = {.num_sms = 2},  // two CTAs each
                         .costs = TileScheduleCosts{.decode_tile = 4,
                                                    .tile = 8,
                                                    .warpgroup_tile = 24,
                                                    .combines_per_step_few_rows = 10,
                                                    .combines_per_step = 5,
                                                    .joint_rows = 8,
                                                    .joint_splits = 16}});
  const KernelSchedule& schedule = work.schedule().main;
  ASSERT_EQ(schedule.num_queues, 4);
  ASSERT_EQ(schedule.costs.tile, 4);
  ASSERT_EQ(kWorkStepKeys, 64);
  ASSERT_EQ(kStepCost, 8);
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());

  const TileScheduleScratch scratch = TileScheduleScratch::At(schedule.scratch, schedule);
  constexpr int kSteps[] = {8, 1, 16, 2, 5};
  constexpr int kCostBefore[] = {0, 68, 80, 212, 232};
  for (int r = 0; r < 5; ++r) {
    EXPECT_EQ(NumSteps(scratch.tiles[r]), kSteps[r]);
    EXPECT_EQ(scratch.tiles[r].cost_begin, kCostBefore[r]);
  }
  EXPECT_EQ(kCostBefore[4] + kSteps[4] * kStepCost + schedule.costs.tile, 276);
  const Queues<int32_t> queues(/*total_cost=*/276, /*min_steps=*/1, schedule.num_queues,
                               schedule.costs.tile);
  EXPECT_EQ(queues.steps(), 9);
  EXPECT_EQ(queues.Border(1), 72);
  EXPECT_EQ(queues.Border(3), 216);

  const auto item = [](int row, int key_begin, int key_end, int partial) {
    return AllOf(KeysOfRow(row, key_begin, key_end), Field(&WorkItem::partial, partial));
  };
  EXPECT_THAT(ItemsOf(schedule),
              ElementsAre(item(0, 0, 500, -1), item(1, 0, 64, -1), item(2, 0, 512, 0),
                          item(2, 512, 1000, 1), item(3, 0, 100, -1), item(4, 0, 300, -1)));
  EXPECT_THAT(std::vector<int32_t>(schedule.queue_items, schedule.queue_items + 5),
              ElementsAre(0, 1, 3, 4, 6));
  ASSERT_EQ(schedule.counts[1], 1);
  EXPECT_EQ(schedule.merges[0].row, 2);
  EXPECT_EQ(schedule.merges[0].first_partial, 0);
  EXPECT_EQ(schedule.merges[0].num_partials, 2);
  EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
}

TEST(TileScheduleBuildTest, SplitsTilesAtQueueBorders) {
  // Costs of 1/2 + 2, 1/2 + 16 and 1/2 + 1 KV tiles: 20 1/2 in 3 queues that begin at 0, 7 and 14.
  Rows rows({128, 1000, 10});
  TileScheduleOptions options = OptionsFor(rows.batch, /*num_kv_heads=*/2);
  options.device.num_sms = 3;  // 6 CTAs
  HostTileSchedule work(options);
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
  // Row 1 costs from 2 1/2 to 19. Its KV tiles begin at 3, so its KV tiles 4 and 11 are at the
  // borders.
  EXPECT_THAT(ItemsOf(work.schedule().main),
              ElementsAre(KeysOfRow(0, 0, 128), KeysOfRow(1, 0, 256), KeysOfRow(1, 256, 704),
                          KeysOfRow(1, 704, 1000), KeysOfRow(2, 0, 10)));
  EXPECT_THAT(
      std::vector<int32_t>(work.schedule().main.queue_items, work.schedule().main.queue_items + 4),
      ElementsAre(0, 2, 3, 5));
  ASSERT_EQ(work.schedule().main.counts[1], 1);
  EXPECT_EQ(work.schedule().main.merges[0].row, 1);
  EXPECT_EQ(work.schedule().main.merges[0].num_partials, 3);
  EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
}

// Large Q tiles have a higher cost without their keys: a queue of short Q tiles gets fewer keys.
TEST(TileScheduleBuildTest, LargeTilesHaveAHigherFixedCost) {
  // Q tiles of 32 queries cost 3 + 1, 3 + 1, 3 + 2 and 3 + 2 KV tiles: 18 in 2 queues of 9.
  Rows rows({128}, /*query_len=*/128);
  TileScheduleOptions options = OptionsFor(rows.batch, /*num_kv_heads=*/1);
  options.num_q_heads = 2;
  // tiles of 64 rows, which do not support round-robin
  options.head_dim_qk = options.head_dim_v = 512;
  options.costs->tile = 3 * kStepCost;
  options.device.num_sms = 2;  // one CTA each
  HostTileSchedule work(options);
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
  EXPECT_THAT(ItemsOf(work.schedule().main),
              ElementsAre(KeysOfRow(0, 0, 32), KeysOfRow(0, 0, 64), KeysOfRow(0, 0, 96),
                          KeysOfRow(0, 0, 128)));
  // The third Q tile's KV tiles begin at 8 + 3, after the border.
  EXPECT_THAT(
      std::vector<int32_t>(work.schedule().main.queue_items, work.schedule().main.queue_items + 3),
      ElementsAre(0, 2, 4));
  EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
}

TEST(TileScheduleBuildTest, KeysLeftOfTheWindowAreSkipped) {
  Rows rows({1000, 50});
  HostTileSchedule work(OptionsFor(rows.batch, /*num_kv_heads=*/500));  // one queue: no splits
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {.left = 99}, work.schedule()).ok());
  EXPECT_THAT(ItemsOf(work.schedule().main),
              ElementsAre(KeysOfRow(0, 900, 1000), KeysOfRow(1, 0, 50)));
}

TEST(TileScheduleBuildTest, KeysRightOfTheLastQueryOfARangeAreSkipped) {
  Rows rows({80}, /*query_len=*/80);  // prefill in Q tiles of 32 queries
  HostTileSchedule work(OptionsFor(rows.batch, /*num_kv_heads=*/500));
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
  EXPECT_THAT(ItemsOf(work.schedule().main),
              ElementsAre(KeysOfRow(0, 0, 32), KeysOfRow(0, 0, 64), KeysOfRow(0, 0, 80)));
}

TEST(TileScheduleBuildTest, WindowDoesNotClipTheTail) {
  Rows rows({100});
  const int32_t tail_len = 30;
  const uint64_t tail_mask = uint64_t{1} << 29 | 1;  // the first and the last
  const int32_t position = 71;
  rows.batch.tail_len = &tail_len;
  rows.batch.tail_mask = &tail_mask;
  rows.batch.query_positions = &position;
  HostTileSchedule work(OptionsFor(rows.batch));
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
  EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
  EXPECT_EQ(work.schedule().main.items[work.schedule().main.counts[0] - 1].key_end, 100);
  // The keys of the path are at positions 70 and 71: a window of one key leaves only the last slot.
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {.left = 0}, work.schedule()).ok());
  EXPECT_THAT(ItemsOf(work.schedule().main), ElementsAre(KeysOfRow(0, 99, 100)));
}

TEST(TileScheduleBuildTest, PaddedRowsGetItemsWithoutKeysAndEmptyRowsGetNoItems) {
  Rows rows({0, 64, 0, 0});
  rows.query_start_loc = {0, 1, 2, 2, 3};  // row 2 has no query
  rows.batch.num_tokens = 3;
  HostTileSchedule work(OptionsFor(rows.batch));
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
  EXPECT_THAT(ItemsOf(work.schedule().main),
              ElementsAre(KeysOfRow(0, 0, 0), KeysOfRow(1, 0, 64), KeysOfRow(3, 0, 0)));
  EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
}

TEST(TileScheduleBuildTest, BatchWithoutQueriesMakesAnEmptySchedule) {
  Rows rows({0, 0});
  rows.query_start_loc = {0, 0, 0};
  HostTileSchedule work(OptionsFor(rows.batch));
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
  EXPECT_EQ(work.schedule().main.counts[0], 0);
  EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
}

TEST(TileScheduleBuildTest, RebuildClearsALargerSchedule) {
  Rows large(std::vector<int32_t>(64, 8000));
  Rows small(std::vector<int32_t>(64, 0));
  small.seq_lens[7] = 100;
  HostTileSchedule work(OptionsFor(large.batch));
  ASSERT_TRUE(TileScheduleOnHost(large.batch, {}, work.schedule()).ok());
  ASSERT_TRUE(TileScheduleOnHost(small.batch, {}, work.schedule()).ok());
  EXPECT_TRUE(CheckTileSchedule(work.schedule(), small.batch, {}).ok());
}

// KV tiles per queue in use. Small batches leave some queues empty, to have fewer partials.
std::vector<int64_t> UsedSteps(const HostTileSchedule& work) {
  std::vector<int64_t> steps = work.QueueSteps();
  std::erase(steps, 0);
  return steps;
}

std::vector<int32_t> Skewed(int num_short, bool long_first) {
  std::vector<int32_t> lens(num_short, 4096);
  lens.insert(long_first ? lens.begin() : lens.end(), 131072);
  return lens;
}

TEST(TileScheduleBuildTest, QueuesAreBalancedForAnyLengths) {
  const std::vector<int32_t> cases[] = {std::vector<int32_t>(64, 1024),
                                        std::vector<int32_t>(256, 1024),
                                        std::vector<int32_t>(16, 4096),
                                        Skewed(31, true),
                                        Skewed(31, false),
                                        {128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768}};
  for (const std::vector<int32_t>& lens : cases) {
    for (int num_kv_heads : {1, 4, 8}) {
      Rows rows(lens);
      HostTileSchedule work(OptionsFor(rows.batch, num_kv_heads));
      ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
      EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
      const std::vector<int64_t> steps = UsedSteps(work);
      const double mean = std::accumulate(steps.begin(), steps.end(), 0.0) / steps.size();
      // A short queue can be one KV tile too long.
      EXPECT_LE(*std::max_element(steps.begin(), steps.end()), 1.1 * mean + 1)
          << lens.size() << " rows, the first of " << lens[0] << ", " << num_kv_heads << " heads";
    }
  }
}

TEST(TileScheduleBuildTest, LargeBatchesUseTheFewestQueuesOfMinimumLength) {
  for (const std::vector<int32_t>& lens :
       {std::vector<int32_t>(8, 1024), std::vector<int32_t>(64, 1024), Skewed(31, false)}) {
    Rows rows(lens);
    HostTileSchedule work(OptionsFor(rows.batch));
    ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
    const std::vector<int64_t> steps = UsedSteps(work);
    const int64_t used = static_cast<int64_t>(steps.size());
    const int64_t most = *std::max_element(steps.begin(), steps.end());
    const int64_t all = std::accumulate(steps.begin(), steps.end(), int64_t{0});
    const int64_t tiles = static_cast<int64_t>(lens.size() + 1) / 2;  // half a KV tile each
    EXPECT_LT((most - 1) * work.schedule().main.num_queues, all + tiles);
    EXPECT_LT((used - 1) * most, all + tiles);
  }
}

std::vector<int> CutsOf(const KernelSchedule& schedule) {
  std::vector<int> cuts;
  for (const WorkItem& item : ItemsOf(schedule)) {
    if (item.key_begin > 0) cuts.push_back(item.key_begin);
  }
  return cuts;
}

TileScheduleOptions WithoutClusters(TileScheduleOptions options) {
  options.costs->clusters_of = {};
  return options;
}

// 33 queues, with two CTAs per SM.
TEST(TileScheduleBuildTest, SmallBatchesOfEqualRowsGetEvenSplits) {
  for (const auto& [num_rows, len, split] :
       {std::tuple{1, 16384, 512}, std::tuple{2, 4096, 256}, std::tuple{4, 1024, 128},
        std::tuple{8, 4096, 1024}, std::tuple{16, 4096, 2048}, std::tuple{10, 4096, 1408},
        std::tuple{32, 4096, 4096}, std::tuple{30, 1024, 1024}}) {
    Rows rows(std::vector<int32_t>(num_rows, len));
    HostTileSchedule work(WithoutClusters(OptionsFor(rows.batch)));
    ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
    EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
    std::vector<int> expected;
    for (int r = 0; r < num_rows; ++r) {
      for (int cut = split; cut < len; cut += split) expected.push_back(cut);
    }
    EXPECT_EQ(CutsOf(work.schedule().main), expected) << num_rows << " x " << len;
    for (const int64_t steps : UsedSteps(work)) EXPECT_LE(steps, split / kWorkStepKeys);
  }
}

TEST(TileScheduleBuildTest, ShortRowsThatFillHalfTheQueuesAreNotSplit) {
  // Q tiles of 28 KV tiles have 2 splits of 14.
  for (const auto& [len, num_cuts] :
       {std::tuple{1024, 0}, std::tuple{1536, 0}, std::tuple{1792, 16}}) {
    Rows rows(std::vector<int32_t>(16, len));
    HostTileSchedule work(WithoutClusters(OptionsFor(rows.batch)));
    ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
    EXPECT_EQ(CutsOf(work.schedule().main).size(), static_cast<size_t>(num_cuts)) << len;
  }
  // One Q tile is longer than the others: Stream-K queues.
  Rows rows({1024, 1024, 1024, 1024, 1024, 1024, 1100, 1024, 1024, 1024, 1024, 1024});
  HostTileSchedule work(WithoutClusters(OptionsFor(rows.batch)));
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
  EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
  EXPECT_FALSE(CutsOf(work.schedule().main).empty());
}

TEST(TileScheduleBuildTest, PaddedRowsDoNotPreventEvenSplits) {
  std::vector<int32_t> lens(16, 0);
  std::fill_n(lens.begin(), 8, 4096);
  Rows rows(lens);
  HostTileSchedule work(WithoutClusters(OptionsFor(rows.batch)));
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
  EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
  // 8 rows of 4 splits have the first 32 queues; rows without keys share the last queue.
  const KernelSchedule& schedule = work.schedule().main;
  ASSERT_EQ(schedule.counts[0], 32 + 8);
  for (int queue = 0; queue < 32; ++queue) {
    EXPECT_EQ(schedule.queue_items[queue], queue);
    EXPECT_EQ(schedule.items[queue].key_end - schedule.items[queue].key_begin, 1024);
  }
  EXPECT_EQ(schedule.queue_items[32], 32);
  EXPECT_EQ(schedule.queue_items[33], 40);
}

TEST(TileScheduleBuildTest, SingleShortRowGetsSplitsOfSeveralKvTiles) {
  Rows rows({1024});
  HostTileSchedule work(OptionsFor(rows.batch));
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
  // 16 KV tiles, and the cost of half a KV tile: 8 queues of 2
  EXPECT_EQ(work.schedule().main.counts[0], 8);
}

TEST(TileScheduleBuildTest, GroupArrivalCountersBeginAtZero) {
  Rows rows({20000, 50, 9000});
  HostTileSchedule work(OptionsFor(rows.batch, 2));
  work.Poison();
  const KernelSchedule& schedule = work.schedule().main;
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
  int num_groups = 0;
  for (const WorkItem& item : ItemsOf(schedule)) {
    if (item.num_partials <= kMaxSplitsAtOnce) continue;
    if ((item.partial - item.first_partial) % kCombineGroup != 0) continue;
    ++num_groups;
    for (int head = 0; head < schedule.num_head_tiles; ++head) {
      EXPECT_EQ(schedule.group_arrivals[item.partial * schedule.num_head_tiles + head], 0u);
    }
  }
  EXPECT_GT(num_groups, 2);
}

TEST(TileScheduleBuildTest, OnlySplitTilesWithoutSharedItemsCombineCooperatively) {
  const auto num_joint = [](const Rows& rows, SharedPrefix shared_prefix) {
    TileScheduleOptions options = OptionsFor(rows.batch);
    options.shared_prefix = shared_prefix;
    options.shared_tiles = SharedTiles::kSmall;
    HostTileSchedule work(options);
    EXPECT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
    const absl::Status check = CheckTileSchedule(work.schedule(), rows.batch, {});
    EXPECT_TRUE(check.ok()) << check;
    const std::vector<WorkItem> items = ItemsOf(work.schedule().main);
    for (const WorkItem& item : items) EXPECT_TRUE(item.is_joint == 0 || item.partial >= 0);
    return std::pair<int, int>(std::count_if(items.begin(), items.end(),
                                             [](const WorkItem& item) { return item.is_joint; }),
                               static_cast<int>(items.size()));
  };
  // Drafts: 16 query rows.
  const auto [num_cut, num_splits] = num_joint(Rows({4096}, 4), SharedPrefix::kIgnored);
  EXPECT_GT(num_splits, 1);
  EXPECT_EQ(num_cut, num_splits);
  EXPECT_EQ(num_joint(Rows({64, 64}, 4), SharedPrefix::kIgnored), std::pair(0, 2));  // unsplit
  Rows rows({4096, 4096}, 4);
  const int32_t prefix_len = 2048;
  rows.batch.common_prefix_len = &prefix_len;
  const auto [num_with_prefix, num_items] = num_joint(rows, SharedPrefix::kTaken);
  EXPECT_GT(num_items, 2);
  EXPECT_EQ(num_with_prefix, 0);
}

TEST(TileScheduleBuildTest, DeterministicSplitsDoNotDependOnOtherRows) {
  const auto cuts_of_row = [](const std::vector<int32_t>& lens, int row) {
    Rows rows(lens);
    rows.batch.max_seq_len = 1 << 17;
    TileScheduleOptions options = OptionsFor(rows.batch);
    options.mode = TileScheduleMode::kDeterministic;
    HostTileSchedule work(options);
    EXPECT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
    EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
    std::vector<int> cuts;
    for (const WorkItem& item : ItemsOf(work.schedule().main)) {
      if (item.row == row) cuts.push_back(item.key_end);
    }
    return cuts;
  };
  for (int32_t len : {1, 500, 1100, 5000, 100000}) {
    const std::vector<int> alone = cuts_of_row({len}, 0);
    EXPECT_LE(alone.size(), 16u);
    EXPECT_EQ(cuts_of_row({700, len, 9000, 3}, 1), alone);
    EXPECT_EQ(cuts_of_row({131072, 0, len}, 2), alone);
  }
  EXPECT_THAT(cuts_of_row({1100}, 0), ElementsAre(384, 768, 1100));  // 18 KV tiles: 3 splits of 6
}

TEST(TileScheduleBuildTest, DeterministicModeLimitsSplitsToMaxSplits) {
  for (int max_splits : {1, 2, 5, 16}) {
    Rows rows({100000, 700, 5000});
    TileScheduleOptions options = OptionsFor(rows.batch);
    options.mode = TileScheduleMode::kDeterministic;
    options.max_splits = max_splits;
    HostTileSchedule work(options);
    ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
    EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
    std::array<int, 3> splits = {};
    for (const WorkItem& item : ItemsOf(work.schedule().main)) ++splits[item.row];
    // 11 and 79 KV tiles; at most one split per 8, rounded up.
    EXPECT_THAT(splits, ElementsAre(max_splits, std::min(max_splits, 2), std::min(max_splits, 10)));
  }
}

// The splits of query `query` of row `row`: key ranges, and the other fields that affect rounding.
std::vector<std::array<int, 6>> SplitsOf(const TileSchedule& work, int row, int query) {
  std::vector<std::array<int, 6>> splits;
  for (const KernelSchedule* schedule : {&work.main, &work.short_rows}) {
    if (schedule->num_ctas == 0) continue;
    for (const WorkItem& item : ItemsOf(*schedule)) {
      if (item.row != row || query < item.query_begin || query >= item.query_end) continue;
      splits.push_back({item.key_begin, item.key_end, item.num_partials, item.first_position,
                        item.query_end - item.query_begin, schedule->tile_rows});
    }
  }
  return splits;
}

// In rows of up to decode_query_len queries, each query is split like a row of one query: with
// small tiles next to larger ones, with the only tile of float32, and with groups of more heads
// than a tile has rows.
TEST(TileScheduleBuildTest, DeterministicDraftQueriesAreSplitLikeDecodes) {
  struct Heads {
    DType dtype;
    int kv_heads, group, head_dim;
  };
  constexpr int kMaxQueries = 17;
  for (const Heads& heads : {Heads{DType::kBFloat16, 8, 4, 128}, Heads{DType::kBFloat16, 2, 1, 64},
                             Heads{DType::kBFloat16, 2, 32, 256}, Heads{DType::kFloat32, 2, 4, 128},
                             Heads{DType::kBFloat16, 1, 128, 576}}) {
    for (const std::optional<int> window : {std::optional<int>(), {100}, {5000}}) {
      Rows rows({70, 1000, 1088, 9000, 700, 3000});
      rows.query_start_loc = {0, 5, 5 + kMaxQueries, 23, 26, 226, 226 + kMaxQueries + 1};
      rows.batch.num_tokens = rows.query_start_loc.back();
      rows.batch.max_query_len = 200;
      TileScheduleOptions options = OptionsFor(rows.batch, heads.kv_heads);
      options.dtype = heads.dtype;
      options.num_q_heads = heads.kv_heads * heads.group;
      options.head_dim_qk = heads.head_dim;
      options.head_dim_v = std::min(heads.head_dim, 512);
      options.mode = TileScheduleMode::kDeterministic;
      HostTileSchedule plain(options);
      options.decode_query_len = kMaxQueries;
      HostTileSchedule work(options);
      const LayerWindow layer_window = {.left = window};
      ASSERT_TRUE(TileScheduleOnHost(rows.batch, layer_window, work.schedule()).ok());
      const absl::Status checked = CheckTileSchedule(work.schedule(), rows.batch, layer_window);
      ASSERT_TRUE(checked.ok()) << checked;
      for (int r = 0; r < 4; ++r) {
        const int query_len = rows.query_start_loc[r + 1] - rows.query_start_loc[r];
        for (int i = 0; i < query_len; ++i) {
          Rows alone({rows.seq_lens[r] - (query_len - 1 - i)});
          ASSERT_TRUE(TileScheduleOnHost(alone.batch, layer_window, plain.schedule()).ok());
          EXPECT_EQ(SplitsOf(work.schedule(), r, i), SplitsOf(plain.schedule(), 0, 0))
              << "row " << r << " query " << i << " window " << window.value_or(-1) << " group "
              << heads.group;
        }
      }
      // decode_query_len does not change the splits of longer rows.
      ASSERT_TRUE(TileScheduleOnHost(rows.batch, layer_window, plain.schedule()).ok());
      for (const int r : {4, 5})
        EXPECT_EQ(SplitsOf(work.schedule(), r, 0), SplitsOf(plain.schedule(), r, 0));
    }
  }
}

// Q tiles that end in their queue use the same partials one after the other, and Q tiles that
// continue in the next queue use other partials. The splits are the same as with separate partials
// per Q tile.
TEST(TileScheduleBuildTest, LargeDeterministicBatchesSharePartialsWithinAQueue) {
  constexpr int kQueries = 5;
  std::vector<int32_t> seq_lens;  // six splits each
  for (int r = 0; r < 60; ++r) seq_lens.push_back(3000 - r % 5 * kWorkStepKeys);
  Rows rows(seq_lens, kQueries);
  for (const int num_sms : {20, 40, 132}) {
    TileScheduleOptions options = OptionsFor(rows.batch, /*num_kv_heads=*/8);
    options.mode = TileScheduleMode::kDeterministic;
    options.decode_query_len = kQueries;
    options.device.num_sms = num_sms;
    HostTileSchedule work(options);
    const KernelSchedule& schedule =
        work.schedule().has_short_rows() ? work.schedule().short_rows : work.schedule().main;
    ASSERT_EQ(schedule.queue_partials, 6);
    ASSERT_EQ(schedule.max_partials, 2 * schedule.num_queues * 6);
    ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
    const absl::Status checked = CheckTileSchedule(work.schedule(), rows.batch, {});
    ASSERT_TRUE(checked.ok()) << checked;
    ASSERT_EQ(schedule.counts[0], 60 * kQueries * 6);
    std::set<int> firsts;
    int num_going_on = 0;
    for (int i = 0; i < schedule.counts[0]; i += 6) {
      const int32_t* const begin = schedule.queue_items;
      const auto queue_of = [&](int item) {
        return std::upper_bound(begin, begin + schedule.num_queues, item) - begin - 1;
      };
      const bool goes_on = queue_of(i) != queue_of(i + 5);
      num_going_on += goes_on;
      EXPECT_EQ(schedule.items[i].partial, (2 * queue_of(i) + goes_on) * 6) << "item " << i;
      firsts.insert(schedule.items[i].partial);
    }
    // There are more Q tiles than sets of partials, and both kinds of Q tiles.
    EXPECT_LT(firsts.size(), size_t{60 * kQueries});
    EXPECT_GT(num_going_on, 0);
    EXPECT_LT(num_going_on, schedule.num_queues);
  }
}

// A decode, four drafts, a prompt, a padded row, a row without queries and another decode.
Rows DecodesAndAPrompt() {
  Rows rows({1000, 2000, 300, 0, 500, 700});
  rows.query_start_loc = {0, 1, 5, 205, 206, 206, 207};
  rows.batch.num_tokens = 230;
  rows.batch.max_query_len = 200;
  return rows;
}

std::vector<int> RowsOf(const KernelSchedule& schedule) {
  std::vector<int> rows;
  for (const WorkItem& item : ItemsOf(schedule)) {
    if (rows.empty() || rows.back() != item.row) rows.push_back(item.row);
  }
  return rows;
}

TEST(TileScheduleBuildTest, ShortAndLongRowsHaveSeparateSchedules) {
  for (RowAssignment row_assignment : {RowAssignment::kByBatch, RowAssignment::kByRow}) {
    Rows rows = DecodesAndAPrompt();
    TileScheduleOptions options = OptionsFor(rows.batch);
    options.row_assignment = row_assignment;
    options.costs->joined_steps = options.costs->joined_steps_beside_prompts = 0;
    HostTileSchedule work(options);
    EXPECT_EQ(WorkOf(rows.batch, {}, work.schedule()).longest_short_row, 4);
    ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
    EXPECT_TRUE(CheckTileSchedule(work.schedule(), rows.batch, {}).ok());
    EXPECT_THAT(RowsOf(work.schedule().main), ElementsAre(2));
    EXPECT_THAT(RowsOf(work.schedule().short_rows), ElementsAre(0, 1, 3, 5));
    EXPECT_EQ(work.schedule().short_rows.items[0].first_token, 0);
    EXPECT_EQ(work.schedule().main.items[0].first_token, 5);
  }
}

TEST(TileScheduleBuildTest, ShortRowsJoinLongRowsIfBothHaveShortSequences) {
  Rows rows = DecodesAndAPrompt();
  TileScheduleOptions options = OptionsFor(rows.batch);  // 6 rows of up to 32 KV tiles
  options.costs->joined_steps = 12;                      // 132 CTAs, 8 heads: 198 KV tiles
  options.costs->joined_steps_beside_prompts = 0;
  const auto longest_short_row = [&] {
    return WorkOf(rows.batch, {}, HostTileSchedule(options).schedule()).longest_short_row;
  };
  EXPECT_EQ(longest_short_row(), 0);
  HostTileSchedule work(options);
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
  const absl::Status check = CheckTileSchedule(work.schedule(), rows.batch, {});
  EXPECT_TRUE(check.ok()) << check;
  EXPECT_THAT(RowsOf(work.schedule().main), ElementsAre(0, 1, 2, 3, 5));
  EXPECT_THAT(RowsOf(work.schedule().short_rows), ElementsAre());
  options.row_assignment = RowAssignment::kByRow;
  EXPECT_EQ(longest_short_row(), 4);
  options.row_assignment = RowAssignment::kByBatch;
  options.mode = TileScheduleMode::kDeterministic;
  EXPECT_EQ(longest_short_row(), 4);
  options.mode = TileScheduleMode::kBalanced;
  options.costs->joined_steps = 11;  // 181
  EXPECT_EQ(longest_short_row(), 4);
  rows.batch.max_seq_len = 1900;  // 30 KV tiles
  EXPECT_EQ(longest_short_row(), 0);
}

// The bounds of 64 decodes and a prompt, and of other measured batches (docs/performance.md).
TEST(TileScheduleBuildTest, ShortRowsJoinLongRowsOfComparableCost) {
  const auto join = [](int num_decodes, int new_tokens, int max_seq_len, int num_q_heads = 32,
                       int num_kv_heads = 8, int head_dim = 128) {
    const PagedBatch batch = {.num_rows = num_decodes + 1,
                              .num_tokens = num_decodes + new_tokens,
                              .max_query_len = new_tokens,
                              .max_seq_len = max_seq_len};
    TileScheduleOptions options = OptionsFor(batch);
    options.num_q_heads = num_q_heads;
    options.num_kv_heads = num_kv_heads;
    options.head_dim_qk = options.head_dim_v = head_dim;
    return WorkOf(batch, {}, HostTileSchedule(options).schedule()).longest_short_row == 0;
  };
  EXPECT_TRUE(join(64, 1024, 4096));
  EXPECT_TRUE(join(32, 2048, 2048));
  EXPECT_TRUE(join(15, 780, 1500, 48, 6));
  EXPECT_FALSE(join(128, 256, 2304));
  EXPECT_FALSE(join(46, 115, 8055, 24));
  EXPECT_FALSE(join(64, 700, 4096));        // 21 Q tiles
  EXPECT_FALSE(join(64, 1024, 4096 + 64));  // over 256 KV tiles per CTA
  EXPECT_FALSE(join(64, 1024, 4096, 32, 8, 64));
}

TEST(TileScheduleBuildTest, DecodeStepWithAPrefillPlanHasOnlyShortRows) {
  Rows rows = DecodesAndAPrompt();
  HostTileSchedule work(OptionsFor(rows.batch));
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
  Rows decodes({100, 200, 300, 400});
  ASSERT_TRUE(TileScheduleOnHost(decodes.batch, {}, work.schedule()).ok());
  EXPECT_TRUE(CheckTileSchedule(work.schedule(), decodes.batch, {}).ok());
  EXPECT_THAT(RowsOf(work.schedule().main), ElementsAre());
  EXPECT_THAT(RowsOf(work.schedule().short_rows), ElementsAre(0, 1, 2, 3));
}

TEST(TileScheduleBuildTest, UsesOneScheduleIfTheBoundsShowRowsOfOneKind) {
  Rows longest({300, 300}, /*query_len=*/200);
  const auto longest_short_row = [&](const PagedBatch& batch, RowAssignment row_assignment) {
    TileScheduleOptions options = OptionsFor(longest.batch);
    options.row_assignment = row_assignment;
    options.costs->joined_steps = options.costs->joined_steps_beside_prompts = 0;
    return WorkOf(batch, {}, HostTileSchedule(options).schedule()).longest_short_row;
  };
  // The maximum number of tokens: no row is short.
  EXPECT_EQ(longest_short_row(longest.batch, RowAssignment::kByBatch), 0);
  EXPECT_EQ(longest_short_row(longest.batch, RowAssignment::kByRow), 4);
  PagedBatch fewer = longest.batch;
  fewer.num_tokens = 204;  // one row may have 4
  EXPECT_EQ(longest_short_row(fewer, RowAssignment::kByBatch), 4);
  fewer.num_tokens = 205;
  EXPECT_EQ(longest_short_row(fewer, RowAssignment::kByBatch), 0);
  // The long rows have drafts to verify, and are barely longer than short rows.
  Rows drafts({300, 300}, /*query_len=*/16);
  drafts.batch.num_tokens = 20;
  EXPECT_EQ(longest_short_row(drafts.batch, RowAssignment::kByBatch), 0);
  EXPECT_EQ(longest_short_row(drafts.batch, RowAssignment::kByRow), 4);
  drafts.batch.max_query_len = 17;
  EXPECT_EQ(longest_short_row(drafts.batch, RowAssignment::kByBatch), 4);
  drafts.batch.max_query_len = 4;
  EXPECT_EQ(longest_short_row(drafts.batch, RowAssignment::kByBatch), 4);
}

TEST(TileScheduleBuildTest, LengthsBeyondThePlanStayWithinTheWorkspace) {
  for (TileScheduleMode mode : {TileScheduleMode::kBalanced, TileScheduleMode::kDeterministic}) {
    Rows rows = DecodesAndAPrompt();
    TileScheduleOptions options = OptionsFor(rows.batch);
    options.mode = mode;
    HostTileSchedule work(options);
    const int32_t huge = std::numeric_limits<int32_t>::max();
    std::fill(rows.seq_lens.begin(), rows.seq_lens.end(), huge);
    ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
    EXPECT_TRUE(work.IsGuardIntact());
    rows.query_start_loc = {0, 1000000, 2000000, 3000000, huge - 2, huge - 1, huge};
    ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
    EXPECT_TRUE(work.IsGuardIntact());
  }
}

TEST(TileScheduleBuildTest, RejectsAnEmptyTileScheduleAndNamesPlanTileSchedule) {
  Rows rows({5});
  const absl::Status status = TileScheduleOnHost(rows.batch, {}, TileSchedule{}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("PlanTileSchedule"));
}

TEST(TileScheduleBuildTest, RejectsTailsWithoutMasks) {
  Rows rows({128, 200});
  HostTileSchedule work(OptionsFor(rows.batch));
  const std::vector<int32_t> tail_len = {3, 3};
  rows.batch.tail_len = tail_len.data();
  EXPECT_EQ(TileScheduleOnHost(rows.batch, {}, work.schedule()).status(),
            absl::InvalidArgumentError("tail_mask, with tail_len: expected an array, got none"));
}

TEST(TileScheduleBuildTest, RejectsBatchesWhoseBoundsExceedThePlan) {
  Rows rows({100, 100});
  for (int PagedBatch::*field : {&PagedBatch::num_rows, &PagedBatch::num_tokens,
                                 &PagedBatch::max_query_len, &PagedBatch::max_seq_len}) {
    HostTileSchedule work(OptionsFor(rows.batch));
    PagedBatch larger = rows.batch;
    ++(larger.*field);
    EXPECT_EQ(TileScheduleOnHost(larger, {}, work.schedule()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace reprise
