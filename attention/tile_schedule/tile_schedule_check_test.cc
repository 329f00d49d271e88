#include "reprise/attention/tile_schedule/tile_schedule_check.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/host_tile_schedule.h"
#include "reprise/attention/testing/tile_schedule_rows.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

// Returns the checker's message for a valid schedule after `harm`. Decodes of two rows.
std::string VerdictOn(const std::vector<int32_t>& seq_lens, int num_sms,
                      const std::function<void(const KernelSchedule&)>& harm) {
  const Rows rows(seq_lens);
  const PagedBatch& batch = rows.batch;
  HostTileSchedule work({.num_q_heads = 2,
                         .num_kv_heads = 2,
                         .head_dim_qk = 128,
                         .head_dim_v = 128,
                         .max_rows = 2,
                         .max_tokens = 2,
                         .max_seq_len = seq_lens[0],
                         .device = {.num_sms = num_sms}});
  EXPECT_TRUE(TileScheduleOnHost(batch, {}, work.schedule()).ok());
  EXPECT_TRUE(CheckTileSchedule(work.schedule(), batch, {}).ok());
  harm(work.schedule().main);
  return std::string(CheckTileSchedule(work.schedule(), batch, {}).message());
}

// Row 0 in three splits, row 1 unsplit: costs of 10 1/2 and 1 1/2 KV tiles, in queues of 4.
std::string VerdictAfter(const std::function<void(const KernelSchedule&)>& harm) {
  return VerdictOn({640, 64}, /*num_sms=*/3, [&harm](const KernelSchedule& schedule) {
    EXPECT_EQ(schedule.counts[0], 4);
    harm(schedule);
  });
}

TEST(TileScheduleCheckTest, FindsEachBrokenInvariant) {
  using Map = const KernelSchedule&;
  EXPECT_THAT(VerdictAfter([](Map m) { ++m.items[1].key_begin; }), HasSubstr("invariant 1"));
  EXPECT_THAT(VerdictAfter([](Map m) { --m.items[2].key_end; }), HasSubstr("invariant 1"));
  EXPECT_THAT(VerdictAfter([](Map m) { m.items[3].row = 0; }), HasSubstr("invariant 2"));
  EXPECT_THAT(VerdictAfter([](Map m) { m.counts[0] = 1 << 20; }), HasSubstr("invariant 3"));
  EXPECT_THAT(VerdictAfter([](Map m) { ++m.items[1].partial; }), HasSubstr("invariant 4"));
  EXPECT_THAT(VerdictAfter([](Map m) { --m.merges[0].num_partials; }), HasSubstr("invariant 4"));
  EXPECT_THAT(VerdictAfter([](Map m) { m.items[3].partial = 0; }), HasSubstr("invariant 4"));
  EXPECT_THAT(VerdictAfter([](Map m) { ++m.queue_items[3]; }), HasSubstr("invariant 5"));
  EXPECT_THAT(VerdictAfter([](Map m) { m.queue_items[2] = 0; }), HasSubstr("invariant 5"));
  EXPECT_THAT(VerdictAfter([](Map m) { ++m.queue_first[0].key_end; }), HasSubstr("invariant 5"));
  EXPECT_THAT(VerdictAfter([](Map m) { ++m.items[3].first_token; }), HasSubstr("invariant 2"));
  EXPECT_THAT(VerdictAfter([](Map m) { ++m.items[0].num_partials; }), HasSubstr("invariant 4"));
  EXPECT_THAT(VerdictAfter([](Map m) { m.items[1].is_joint ^= 1; }), HasSubstr("invariant 4"));
}

// Twelve decodes of two splits each. Some Q tiles end in their queue, and some continue in the
// next.
TEST(TileScheduleCheckTest, FindsPartialsSharedByConcurrentTiles) {
  constexpr int kRows = 12;
  const Rows rows(std::vector<int32_t>(kRows, 1024));
  const PagedBatch& batch = rows.batch;
  HostTileSchedule work({.num_q_heads = 2,
                         .num_kv_heads = 2,
                         .head_dim_qk = 128,
                         .head_dim_v = 128,
                         .max_rows = kRows,
                         .max_tokens = kRows,
                         .max_seq_len = 1024,
                         .device = {.num_sms = 5},
                         .mode = TileScheduleMode::kDeterministic});
  const KernelSchedule& schedule = work.schedule().main;
  ASSERT_EQ(schedule.queue_partials, 2);
  ASSERT_TRUE(TileScheduleOnHost(batch, {}, work.schedule()).ok());
  ASSERT_TRUE(CheckTileSchedule(work.schedule(), batch, {}).ok());
  ASSERT_EQ(schedule.counts[0], 2 * kRows);
  // Q tiles that end in queue 0 may share partials, and do.
  ASSERT_GE(schedule.queue_items[1], 4);
  EXPECT_EQ(schedule.items[0].partial, schedule.items[2].partial);
  const auto move = [&](int range, int partial) {
    schedule.merges[range].first_partial = partial;
    for (int split = 0; split < 2; ++split) {
      WorkItem& item = schedule.items[2 * range + split];
      item.first_partial = partial;
      item.partial = partial + split;
      for (int c = 0; c < schedule.num_queues; ++c) {
        if (schedule.queue_items[c] == 2 * range + split) schedule.queue_first[c] = item;
      }
    }
  };
  // Moves the partials of the last Q tile, in the last queue, to those of the first Q tile.
  const int own = schedule.items[2 * kRows - 2].partial;
  move(kRows - 1, schedule.items[0].partial);
  EXPECT_THAT(std::string(CheckTileSchedule(work.schedule(), batch, {}).message()),
              HasSubstr("invariant 3"));
  move(kRows - 1, own);
  ASSERT_TRUE(CheckTileSchedule(work.schedule(), batch, {}).ok());
  // Moves the partials of a Q tile that continues in the next queue to the slots of Q tiles that
  // end in its first queue.
  for (int range = 0; range < kRows; ++range) {
    const int partial = schedule.items[2 * range].partial;
    if (partial / schedule.queue_partials % 2 == 0) continue;
    move(range, partial - schedule.queue_partials);
    EXPECT_THAT(std::string(CheckTileSchedule(work.schedule(), batch, {}).message()),
                HasSubstr("invariant 3"));
    return;
  }
  FAIL() << "no Q tile continues in the next queue";
}

// Row 0 in queues 0 to 3, row 1 in queue 4.
std::string VerdictOnClustersAfter(const std::function<void(const KernelSchedule&)>& harm) {
  return VerdictOn({500, 64}, /*num_sms=*/132, [&harm](const KernelSchedule& schedule) {
    EXPECT_EQ(schedule.counts[4], 1);
    harm(schedule);
  });
}

TEST(TileScheduleCheckTest, FindsSplitsOutsideTheirCluster) {
  using Map = const KernelSchedule&;
  // The last split is in the queue of the split before it.
  EXPECT_THAT(VerdictOnClustersAfter([](Map m) { m.queue_items[3] = 4; }),
              HasSubstr("invariant 7"));
  // Row 1 is one queue too far.
  EXPECT_THAT(VerdictOnClustersAfter([](Map m) {
                m.queue_items[5] = 4;
                m.queue_first[5] = m.items[4];
              }),
              HasSubstr("invariant 7"));
}

}  // namespace
}  // namespace reprise
