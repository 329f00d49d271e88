// Which batches have queues of unsplit Q tiles, clusters of queues, or wide CTAs; and how the
// schedule changes if lengths change under one plan.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/device_profile.h"
#include "reprise/attention/testing/host_tile_schedule.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/tile_schedule_rows.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_check.h"
#include "reprise/attention/tile_schedule/tile_schedule_cut.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;

void Build(const Rows& rows, HostTileSchedule& work, const LayerWindow& window = {}) {
  work.Poison();
  ASSERT_TRUE(TileScheduleOnHost(rows.batch, window, work.schedule()).ok());
  const absl::Status checked = CheckTileSchedule(work.schedule(), rows.batch, window);
  ASSERT_TRUE(checked.ok()) << checked;
  EXPECT_TRUE(work.IsGuardIntact());
}

// Items per non-empty queue.
std::vector<int> ItemsOfQueues(const KernelSchedule& schedule) {
  std::vector<int> counts;
  for (int queue = 0; queue < schedule.num_queues; ++queue) {
    const int count = schedule.queue_items[queue + 1] - schedule.queue_items[queue];
    if (count > 0) counts.push_back(count);
  }
  return counts;
}

int NumMerges(const Rows& rows, const TileScheduleOptions& options) {
  HostTileSchedule work(options);
  Build(rows, work);
  return work.schedule().main.counts[1];
}

// 33 queues.
TEST(TileScheduleWholeTest, EqualRowsThatNearlyFillTheQueuesAreNotSplit) {
  for (const auto& [num_rows, of_queue] : {std::pair{64, 2}, std::pair{63, 2}, std::pair{66, 2},
                                           std::pair{96, 3}, std::pair{128, 4}}) {
    for (const int len : {1024, 1065, 4096, 16384}) {
      if (of_queue == 4 && len != 4096) continue;
      SCOPED_TRACE(std::to_string(num_rows) + " x " + std::to_string(len));
      const Rows rows(std::vector<int32_t>(num_rows, len));
      HostTileSchedule work(OptionsFor(rows.batch));
      Build(rows, work);
      const KernelSchedule& schedule = work.schedule().main;
      EXPECT_EQ(schedule.counts[0], num_rows);
      EXPECT_EQ(schedule.counts[1], 0);
      const std::vector<int> counts = ItemsOfQueues(schedule);
      for (size_t c = 0; c + 1 < counts.size(); ++c) EXPECT_EQ(counts[c], of_queue) << c;
      TileScheduleOptions filled = OptionsFor(rows.batch);
      filled.costs->border = filled.costs->border_percent = 0;
      EXPECT_GE(NumMerges(rows, filled), num_rows == 66 ? 0 : 20);
    }
  }
}

// The cost of Stream-K borders decreases with the number of Q tiles per queue.
TEST(TileScheduleWholeTest, LongQueuesUseStreamK) {
  for (const auto& [num_rows, len] :
       {std::pair{128, 1024}, std::pair{128, 16384}, std::pair{160, 4096}, std::pair{256, 16384}}) {
    const Rows rows(std::vector<int32_t>(num_rows, len));
    EXPECT_GT(NumMerges(rows, OptionsFor(rows.batch)), 0) << num_rows << " x " << len;
  }
}

TEST(TileScheduleWholeTest, DraftsThatNearlyFillTheQueuesAreNotSplit) {
  for (const int query_len : {4, 6}) {  // 16 and 24 query rows
    const Rows rows(std::vector<int32_t>(128, 4096), query_len);
    EXPECT_EQ(NumMerges(rows, OptionsFor(rows.batch)), 0) << query_len;
  }
}

// Idle queues: 62 rows in pairs make 31 queues that are 6.5 % wider than 33 Stream-K queues.
TEST(TileScheduleWholeTest, RowsThatWouldLeaveQueuesIdleAreSplit) {
  for (const int num_rows : {34, 40, 62, 70, 90, 100}) {
    const Rows rows(std::vector<int32_t>(num_rows, 1024));
    EXPECT_GT(NumMerges(rows, OptionsFor(rows.batch)), 0) << num_rows;
  }
}

TEST(TileScheduleWholeTest, RowsOfDifferentLengthsAreSplit) {
  std::vector<int32_t> lens(64, 4096);
  lens[7] += 4 * kWorkStepKeys;
  const Rows alike(lens);
  EXPECT_EQ(NumMerges(alike, OptionsFor(alike.batch)), 0);
  // A queue of 133 KV tiles and two Q tiles is more than 6 % wider than a queue of 126 KV tiles.
  lens[7] += kWorkStepKeys;
  const Rows unlike(lens);
  EXPECT_GT(NumMerges(unlike, OptionsFor(unlike.batch)), 0);
}

// Larger kernel tiles are compute bound, so idle CTAs cost time.
TEST(TileScheduleWholeTest, OnlyMemoryBoundTilesShareAQueueUnsplit) {
  const auto is_bound_by_reading = [](const TileScheduleOptions& options) {
    return PlanTileSchedule(options)->shape.main.costs.is_bound_by_reading;
  };
  const TileScheduleOptions decode = OptionsFor(Rows(std::vector<int32_t>(64, 1024)).batch);
  EXPECT_TRUE(is_bound_by_reading(decode));
  TileScheduleOptions other = decode;
  other.max_query_len = 8;  // kernel tiles of 32 rows
  other.max_tokens = 8 * other.max_rows;
  EXPECT_TRUE(is_bound_by_reading(other));
  other.max_query_len = 100;
  EXPECT_FALSE(is_bound_by_reading(other));
  other = decode;
  other.dtype = DType::kFloat32;
  EXPECT_FALSE(is_bound_by_reading(other));
  // 31 Q tiles of 128 query rows in 16 queues: two of them are 3 % wider than a Stream-K queue.
  const Rows long_rows(std::vector<int32_t>(31, 2048), /*query_len=*/32);
  TileScheduleOptions options = OptionsFor(long_rows.batch);
  options.head_dim_qk = options.head_dim_v = 256;  // no round-robin
  EXPECT_GT(NumMerges(long_rows, options), 0);
}

// 33 queues, with two CTAs per SM.
TEST(TileScheduleWholeTest, CostsDecideWhetherRowsOfTwoQueuesAreSplit) {
  const auto num_merges = [](int len, const TileScheduleCosts& costs) {
    const Rows rows(std::vector<int32_t>(16, len));
    TileScheduleOptions options = OptionsFor(rows.batch);
    options.costs = costs;
    options.costs->clusters_of = {};
    return NumMerges(rows, options);
  };
  TileScheduleCosts costs = H200Profile().tile_schedule;
  EXPECT_EQ(num_merges(1024, costs), 0);
  EXPECT_EQ(num_merges(4096, costs), 16);
  costs.merge = 1000;
  EXPECT_EQ(num_merges(4096, costs), 0);
  costs.merge = 0;
  EXPECT_EQ(num_merges(1024, costs), 16);
  costs = H200Profile().tile_schedule;
  costs.lone_loss_percent = 100;  // A lone CTA is no faster than one of two.
  EXPECT_EQ(num_merges(1024, costs), 16);
  costs = H200Profile().tile_schedule;
  // Unsplit Q tiles of 16 KV tiles, at 56 %, end later than Stream-K queues of 8 KV tiles.
  costs.border = costs.border_percent = 0;
  EXPECT_EQ(num_merges(1024, costs), 16);
}

// A row without keys takes a place in the queues if a row with keys follows it.
TEST(TileScheduleWholeTest, RowsWithoutKeysBetweenLiveRowsOccupyAPlace) {
  std::vector<int32_t> lens(33, 4096);
  const Rows full(lens);
  EXPECT_EQ(NumMerges(full, OptionsFor(full.batch)), 0);
  lens[5] = 0;
  lens.push_back(4096);  // 33 with keys, 34 to place
  const Rows rows(lens);
  HostTileSchedule work(OptionsFor(rows.batch));
  Build(rows, work);
  EXPECT_GT(work.schedule().main.counts[1], 0);
  for (const int64_t steps : work.QueueSteps()) EXPECT_LE(steps, 65);
}

TEST(TileScheduleWholeTest, PaddedRowsOccupyNoPlace) {
  for (const int live : {32, 64, 128}) {
    std::vector<int32_t> lens(live, 2048);
    lens.resize(live + live / 4, 0);
    const Rows rows(lens);
    HostTileSchedule work(OptionsFor(rows.batch));
    Build(rows, work);
    const KernelSchedule& schedule = work.schedule().main;
    EXPECT_EQ(schedule.counts[1], 0) << live;
    EXPECT_EQ(schedule.counts[0], live + live / 4);
    for (int queue = 0; queue < 32; ++queue) {
      EXPECT_EQ(schedule.queue_items[queue + 1] - schedule.queue_items[queue], live / 32) << live;
    }
  }
  // All rows are padded.
  const Rows rows(std::vector<int32_t>(64, 1024));
  HostTileSchedule work(OptionsFor(rows.batch));
  Rows padded = rows;
  std::fill(padded.seq_lens.begin(), padded.seq_lens.end(), 0);
  Build(padded, work);
}

TEST(TileScheduleWholeTest, LengthsMayChangeUnderOnePlan) {
  Random random(3);
  for (const int num_kv_heads : {1, 2, 8}) {
    Rows rows(std::vector<int32_t>(2 * (264 / num_kv_heads) + 5, 5000));
    HostTileSchedule work(OptionsFor(rows.batch, num_kv_heads));
    int num_whole = 0;
    for (int round = 0; round < 60; ++round) {
      const int live = random.Int(0, static_cast<int>(rows.seq_lens.size()));
      const int len = random.Pick({100, 1000, 5000});
      const int spread = random.Pick({0, 0, 30, 900});
      for (int r = 0; r < static_cast<int>(rows.seq_lens.size()); ++r) {
        rows.seq_lens[r] = r < live ? std::clamp(len - random.Int(0, spread), 1, 5000) : 0;
      }
      Build(rows, work);
      const KernelSchedule& schedule = work.schedule().main;
      num_whole += live > schedule.num_queues && schedule.counts[1] == 0;
    }
    EXPECT_GE(num_whole, 2) << num_kv_heads;
  }
}

// The queues of the items, row by row. Each item must be the only one in its queue.
std::vector<int> QueuesOf(const KernelSchedule& schedule) {
  std::vector<int> queues;
  for (int queue = 0; queue < schedule.num_queues; ++queue) {
    const int count = schedule.queue_items[queue + 1] - schedule.queue_items[queue];
    EXPECT_LE(count, 1) << queue;
    if (count > 0) queues.push_back(queue);
  }
  return queues;
}

TEST(TileScheduleClusterTest, RowsWithTwoQueuesAreHalvedWithinACluster) {
  std::vector<int32_t> lens(14, 1024);
  lens[1] = 900;  // 15 KV tiles: 8 and 7
  lens[2] = 64;   // one KV tile: one split
  lens[3] = 0;
  const Rows rows(lens);
  HostTileSchedule work(OptionsFor(rows.batch));
  Build(rows, work);
  const KernelSchedule& schedule = work.schedule().main;
  ASSERT_EQ(ClusterOf(schedule, 14, -1), 2);
  ASSERT_EQ(schedule.counts[4], 1);
  std::vector<int> expected = {0, 1, 2, 3, 4, 6};
  for (int queue = 8; queue < 28; ++queue) expected.push_back(queue);
  EXPECT_EQ(QueuesOf(schedule), expected);
  EXPECT_THAT(std::vector<WorkItem>(schedule.items, schedule.items + 6),
              ElementsAre(KeysOfRow(0, 0, 512), KeysOfRow(0, 512, 1024), KeysOfRow(1, 0, 512),
                          KeysOfRow(1, 512, 900), KeysOfRow(2, 0, 64), KeysOfRow(3, 0, 0)));
}

TEST(TileScheduleClusterTest, RowsOfDifferentLengthsUseStreamKOverTheClusterQueues) {
  std::vector<int32_t> lens(16, 1024);
  lens[7] = 20000;
  const Rows rows(lens);
  HostTileSchedule work(OptionsFor(rows.batch));
  Build(rows, work);
  const KernelSchedule& schedule = work.schedule().main;
  ASSERT_EQ(ClusterOf(schedule, 16, -1), 2);
  EXPECT_EQ(schedule.counts[4], 0);
  EXPECT_EQ(schedule.queue_items[32], schedule.counts[0]);  // the last of 33 queues is unused
}

TEST(TileScheduleClusterTest, PaddedRowsLeaveTheirQueuesToLiveRows) {
  std::vector<int32_t> lens(16, 0);
  std::fill_n(lens.begin(), 8, 4096);
  const Rows rows(lens);
  HostTileSchedule work(OptionsFor(rows.batch));
  Build(rows, work);
  // In clusters of two, the live rows would use only 16 of the 32 queues.
  EXPECT_EQ(work.schedule().main.counts[4], 0);
  EXPECT_EQ(work.schedule().main.counts[0], 8 * 4 + 8);
}

// Resident clusters with 8 heads, for cluster sizes 2 to 8: 16, 10, 7, 5, 4, 3 and 3.
TEST(TileScheduleClusterTest, ClusterSizeFollowsTheNumberOfKeys) {
  struct Case {
    int num_rows, len, cluster, steps;  // steps: KV tiles per split
  };
  for (const Case& c :
       {// Two KV tiles per split, in the smallest cluster that allows it.
        Case{1, 1024, 8, 2}, Case{3, 1000, 8, 2}, Case{3, 512, 4, 2}, Case{7, 500, 4, 2},
        Case{7, 256, 2, 2}, Case{8, 200, 2, 2}, Case{2, 700, 6, 2}, Case{10, 384, 3, 2},
        Case{5, 640, 5, 2},
        // One KV tile more than without clusters.
        Case{4, 1000, 6, 3}, Case{4, 1024, 6, 3}, Case{4, 1536, 6, 4}, Case{1, 1025, 6, 3},
        Case{1, 1536, 8, 3}, Case{3, 2048, 8, 4}, Case{8, 500, 3, 3}, Case{8, 768, 3, 4},
        Case{11, 512, 2, 4},
        // The same number of KV tiles as without clusters.
        Case{6, 1024, 4, 4}, Case{7, 1024, 4, 4}, Case{5, 1280, 5, 4}, Case{10, 768, 3, 4}}) {
    SCOPED_TRACE(std::to_string(c.num_rows) + " x " + std::to_string(c.len));
    const Rows rows(std::vector<int32_t>(c.num_rows, c.len));
    HostTileSchedule work(OptionsFor(rows.batch));
    Build(rows, work);
    const KernelSchedule& schedule = work.schedule().main;
    EXPECT_EQ(ClusterOf(schedule, c.num_rows, -1), c.cluster);
    EXPECT_EQ(schedule.counts[4], 1);
    for (const WorkItem& item : ItemsOf(schedule)) {
      EXPECT_LE(item.key_end - item.key_begin, c.steps * kWorkStepKeys);
    }
  }
}

TEST(TileScheduleClusterTest, LongRowsAndLargeBatchesHaveNoClusters) {
  for (const auto& [num_rows, len] :
       {std::pair{1, 128}, std::pair{3, 128}, std::pair{1, 1537}, std::pair{2, 1537},
        std::pair{3, 2049}, std::pair{4, 1537}, std::pair{5, 1281}, std::pair{7, 1025},
        std::pair{8, 769}, std::pair{8, 1024}, std::pair{10, 769}, std::pair{11, 513},
        std::pair{17, 300}, std::pair{33, 500}}) {
    SCOPED_TRACE(std::to_string(num_rows) + " x " + std::to_string(len));
    const Rows rows(std::vector<int32_t>(num_rows, len));
    HostTileSchedule work(OptionsFor(rows.batch));
    Build(rows, work);
    EXPECT_EQ(ClusterOf(work.schedule().main, num_rows, -1), 1);
    EXPECT_EQ(work.schedule().main.counts[4], 0);
  }
}

// In these batches, Q tiles have clusters for any lengths within the bounds, if any row has keys.
TEST(TileScheduleClusterTest, LengthsMayChangeWithinTheBounds) {
  Random random(4);
  for (const auto& [num_rows, len] : {std::pair{4, 1536}, std::pair{7, 1024}, std::pair{3, 2048},
                                      std::pair{10, 768}, std::pair{1, 1536}, std::pair{11, 512}}) {
    Rows rows(std::vector<int32_t>(num_rows, len));
    HostTileSchedule work(OptionsFor(rows.batch));
    for (int round = 0; round < 40; ++round) {
      for (int32_t& l : rows.seq_lens) l = random.Pick({0, 1, 64, len, random.Int(1, len)});
      Build(rows, work);
      const bool have_keys = *std::max_element(rows.seq_lens.begin(), rows.seq_lens.end()) > 0;
      EXPECT_EQ(work.schedule().main.counts[4], have_keys) << num_rows << " rows";
    }
  }
}

TEST(TileScheduleClusterTest, ClustersStayWithinTheQueuesForAnyShape) {
  Random random(5);
  std::array<int, kMaxClusterQueues + 1> num_of_cluster = {};
  for (int round = 0; round < 400; ++round) {
    const int num_kv_heads = random.Pick({1, 2, 4, 8, 20});
    Rows rows(std::vector<int32_t>(random.Int(1, 132 / num_kv_heads), random.Int(1, 3000)),
              random.Pick({1, 1, 4}));
    for (int32_t& l : rows.seq_lens) l = random.Pick({l, l, l - random.Int(0, l)});
    TileScheduleOptions options = OptionsFor(rows.batch, num_kv_heads);
    options.device.num_sms = random.Pick({132, 132, 20});
    HostTileSchedule work(options);
    Build(rows, work);
    const KernelSchedule& schedule = work.schedule().main;
    const int cluster = ClusterOf(schedule, rows.batch.num_rows, -1);
    EXPECT_LE(QueuesInUse(schedule, cluster), schedule.num_queues);
    EXPECT_EQ(QueuesInUse(schedule, cluster) % cluster, 0);
    if (schedule.counts[4] != 0) ++num_of_cluster[cluster];
  }
  for (int n = 2; n <= kMaxClusterQueues; ++n) EXPECT_GE(num_of_cluster[n], 2) << n;
}

TEST(TileScheduleClusterTest, WindowEnablesClusters) {
  const Rows rows({30000, 200});
  HostTileSchedule work(OptionsFor(rows.batch));
  const LayerWindow window = {.left = 600};
  Build(rows, work, window);
  const KernelSchedule& schedule = work.schedule().main;
  EXPECT_EQ(ClusterOf(schedule, 2, -1), 1);
  // 601 keys touch 11 KV tiles if the first key is inside a KV tile.
  EXPECT_EQ(ClusterOf(schedule, 2, 600), 6);
  EXPECT_EQ(schedule.counts[4], 1);
  EXPECT_EQ(schedule.items[0].key_begin, 30000 - 601);
}

bool HasWideCtas(const HostTileSchedule& work, const Rows& rows, int window_left = -1) {
  const KernelSchedule& schedule = work.schedule().main;
  const int num_rows = rows.batch.num_rows;
  return IsWide(schedule, ClusterOf(schedule, num_rows, window_left), num_rows, window_left);
}

// 132 SMs are at least 32 for each of four Q tiles.
TEST(TileScheduleWideTest, SmallBatchesOfLongRowsHaveWideCtas) {
  struct Case {
    int num_rows, num_kv_heads, len;
    bool is_wide;
  };
  for (const Case& c :
       {Case{1, 1, 8192, true}, Case{4, 1, 8192, true}, Case{5, 1, 8192, false},
        Case{1, 1, 4097, true}, Case{1, 1, 4096, false}, Case{1, 1, 131072, true},
        Case{2, 2, 8192, true}, Case{3, 2, 8192, false}, Case{1, 4, 8192, true},
        Case{2, 4, 8192, false}, Case{1, 8, 8192, false}, Case{1, 1, 1024, false}}) {
    SCOPED_TRACE(std::to_string(c.num_rows) + " x " + std::to_string(c.len) + " of " +
                 std::to_string(c.num_kv_heads));
    const Rows rows(std::vector<int32_t>(c.num_rows, c.len));
    HostTileSchedule work(OptionsFor(rows.batch, c.num_kv_heads));
    Build(rows, work);
    EXPECT_EQ(HasWideCtas(work, rows), c.is_wide);
    const KernelSchedule& schedule = work.schedule().main;
    if (!c.is_wide) continue;
    EXPECT_EQ(schedule.wide_queues, 132 / c.num_kv_heads);
    EXPECT_EQ(schedule.queue_items[schedule.wide_queues], schedule.counts[0]);
    EXPECT_TRUE(c.len != 8192 || schedule.counts[0] == c.num_rows * 32);  // four KV tiles per split
  }
}

TEST(TileScheduleWideTest, EmptyBatchesHaveNoWideCtas) {
  for (const int num_kv_heads : {1, 8}) {
    Rows rows({8192});
    HostTileSchedule work(OptionsFor(rows.batch, num_kv_heads));
    EXPECT_FALSE(IsWide(work.schedule().main, 1, 0, -1));
  }
}

TEST(TileScheduleWideTest, NarrowWindowDisablesWideCtas) {
  const Rows rows({20000});
  HostTileSchedule work(OptionsFor(rows.batch, 1));
  Build(rows, work, {.left = 4096});
  EXPECT_TRUE(HasWideCtas(work, rows, 4096));
  Build(rows, work, {.left = 4000});
  EXPECT_FALSE(HasWideCtas(work, rows, 4000));
}

TEST(TileScheduleWideTest, LengthsMayChangeWithinTheBounds) {
  Random random(6);
  for (const int query_len : {1, 4}) {
    for (const int num_rows : {1, 3, 4}) {
      Rows rows(std::vector<int32_t>(num_rows, 100000), query_len);
      HostTileSchedule work(OptionsFor(rows.batch, 1));
      for (int round = 0; round < 40; ++round) {
        for (int32_t& l : rows.seq_lens) {
          l = random.Pick({0, 5, 700, 9000, 100000, random.Int(4, 100000)});
        }
        Build(rows, work);
        EXPECT_TRUE(HasWideCtas(work, rows));
      }
    }
  }
}

TEST(TileScheduleWideTest, OnlySomeDecodeTilesHaveAWideKernel) {
  const auto max_rows = [](const TileScheduleOptions& options) {
    return PlanTileSchedule(options)->shape.main.max_wide_rows;
  };
  const TileScheduleOptions decode = OptionsFor(Rows({8192}).batch, 1);
  EXPECT_EQ(max_rows(decode), 4);
  TileScheduleOptions other = decode;
  other.dtype = DType::kFp8E4M3;
  EXPECT_EQ(max_rows(other), 4);
  other.dtype = DType::kFloat32;
  EXPECT_EQ(max_rows(other), 0);
  for (const int head_dim : {64, 256}) {
    other = decode;
    other.head_dim_qk = other.head_dim_v = head_dim;
    EXPECT_EQ(max_rows(other), 0) << head_dim;
  }
  other = decode;
  other.mode = TileScheduleMode::kDeterministic;  // results of a row would depend on the other rows
  EXPECT_EQ(max_rows(other), 0);
  other = decode;
  other.row_assignment = RowAssignment::kByRow;
  EXPECT_EQ(max_rows(other), 0);
  other = decode;
  other.device.max_shared_bytes = 163 * 1024;
  EXPECT_EQ(max_rows(other), 0);
  other = decode;
  other.max_query_len = 8;  // kernel tiles of 32 rows
  EXPECT_EQ(max_rows(other), 0);
  other = decode;
  other.device.num_sms = 31;
  EXPECT_EQ(max_rows(other), 0);
  other = decode;
  other.costs->sms_of_wide_range = 0;
  EXPECT_EQ(max_rows(other), 0);
}

}  // namespace
}  // namespace reprise
