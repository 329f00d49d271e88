#include "reprise/attention/tile_schedule/cta_units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "reprise/attention/device_profile.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/testing/host_tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_check.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using Place = std::pair<int, int>;  // item, head

std::vector<Place> PlacesOf(const KernelSchedule& schedule, int cta) {
  const CtaUnits units(schedule, cta);
  std::vector<Place> places;
  for (int n = 0; n < units.count(); ++n) places.emplace_back(units.ItemOf(n), units.HeadOf(n));
  return places;
}

// Prompts of `query_lens` new tokens; `lens` are their total lengths.
struct Prompts {
  std::vector<int32_t> query_lens;
  std::vector<int32_t> lens;
  int num_q_heads = 32;
  int num_kv_heads = 8;
  bool are_both_ways = false;  // whether odd CTAs must process round-robin units in reverse
};

// Checks the schedule, and that every (item, head) is in exactly one CTA.
class CtaUnitsTest : public ::testing::Test {
 protected:
  // All rows of a batch are in one schedule.
  static TileScheduleCosts CostsWithoutSplit() {
    TileScheduleCosts costs = H200Profile().tile_schedule;
    costs.joined_steps = 1 << 16;
    return costs;
  }

  static std::vector<int64_t> StepsOfCtas(const Prompts& prompts, bool is_dealt) {
    std::vector<int32_t> query_start_loc = {0};
    for (const int32_t len : prompts.query_lens) {
      query_start_loc.push_back(query_start_loc.back() + len);
    }
    const PagedBatch batch = {
        .query_start_loc = query_start_loc.data(),
        .seq_lens = prompts.lens.data(),
        .num_rows = static_cast<int>(prompts.lens.size()),
        .num_tokens = query_start_loc.back(),
        .max_query_len = *std::max_element(prompts.query_lens.begin(), prompts.query_lens.end()),
        .max_seq_len = *std::max_element(prompts.lens.begin(), prompts.lens.end())};
    HostTileSchedule work({.num_q_heads = prompts.num_q_heads,
                           .num_kv_heads = prompts.num_kv_heads,
                           .head_dim_qk = 128,
                           .head_dim_v = 128,
                           .max_rows = batch.num_rows,
                           .max_tokens = batch.num_tokens,
                           .max_query_len = batch.max_query_len,
                           .max_seq_len = batch.max_seq_len,
                           .costs = CostsWithoutSplit()});
    EXPECT_TRUE(TileScheduleOnHost(batch, {}, work.schedule()).ok());
    EXPECT_TRUE(work.IsGuardIntact());
    const absl::Status check = CheckTileSchedule(work.schedule(), batch, {});
    EXPECT_TRUE(check.ok()) << check;
    const KernelSchedule& schedule = work.schedule().main;
    EXPECT_EQ(schedule.counts[2] > 0, is_dealt);
    std::set<Place> seen;
    std::vector<int64_t> steps(schedule.num_ctas, 0);
    for (int cta = 0; cta < schedule.num_ctas; ++cta) {
      for (const Place& place : PlacesOf(schedule, cta)) {
        EXPECT_TRUE(seen.insert(place).second) << "item " << place.first << " of " << cta;
        const WorkItem& item = schedule.items[place.first];
        steps[cta] += (item.key_end - item.key_begin + kWorkStepKeys - 1) / kWorkStepKeys;
      }
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(schedule.counts[0]) * schedule.num_head_tiles);
    if (is_dealt) ExpectLongestFirst(schedule);
    EXPECT_EQ(schedule.counts[3], prompts.are_both_ways);
    const bool are_decodes_longest = prompts.lens.back() >= prompts.lens.front();
    if (prompts.are_both_ways && are_decodes_longest) ExpectBothKindsUnderWay(schedule);
    return steps;
  }

  // About half of the CTAs begin with a short row, and about half end with a short row.
  static void ExpectBothKindsUnderWay(const KernelSchedule& schedule) {
    int num_begin = 0;
    int num_end = 0;
    for (int cta = 0; cta < schedule.num_ctas; ++cta) {
      const CtaUnits units(schedule, cta);
      ASSERT_GE(units.count(), 2) << cta;
      const auto is_short = [&](int n) { return schedule.items[units.ItemOf(n)].query_len == 1; };
      EXPECT_EQ(units.FirstItem()->row, schedule.items[units.ItemOf(0)].row) << cta;
      num_begin += is_short(0);
      num_end += is_short(units.count() - 1);
    }
    EXPECT_NEAR(num_begin, schedule.num_ctas / 2, schedule.num_ctas / 10);
    EXPECT_NEAR(num_end, schedule.num_ctas / 2, schedule.num_ctas / 10);
  }

  // Lengths are compared in KV tiles or, if the longest exceeds 255 KV tiles, in units of 1/128 to
  // 1/256 of its length. Items of equal length are in item order.
  static void ExpectLongestFirst(const KernelSchedule& schedule) {
    const auto steps_of = [&](int item) {
      const WorkItem& range = schedule.items[item];
      return (range.key_end - range.key_begin + kWorkStepKeys - 1) / kWorkStepKeys;
    };
    int longest = 0;
    for (int i = 0; i < schedule.counts[2]; ++i) longest = std::max(longest, steps_of(i));
    int unit = 1;
    while (longest / unit > 255) unit *= 2;
    for (int rank = 1; rank < schedule.counts[2]; ++rank) {
      const int item = schedule.deal_order[rank - 1];
      const int next = schedule.deal_order[rank];
      const std::pair<int, int> at = {(longest - steps_of(item)) / unit, item};
      const std::pair<int, int> at_next = {(longest - steps_of(next)) / unit, next};
      EXPECT_LT(at, at_next) << "rank " << rank;
    }
  }
};

TEST_F(CtaUnitsTest, RoundRobinAlternatesItsDirection) {
  int32_t counts[4] = {4, 0, 4, 0};
  int32_t order[4] = {2, 0, 3, 1};
  KernelSchedule schedule;
  schedule.counts = counts;
  schedule.deal_order = order;
  schedule.num_head_tiles = 2;
  schedule.heads_per_queue = 2;
  schedule.num_queues = 1;
  schedule.num_ctas = 3;
  schedule.may_be_dealt = true;
  EXPECT_THAT(PlacesOf(schedule, 0), ElementsAre(Place(2, 0), Place(3, 1), Place(1, 0)));
  EXPECT_THAT(PlacesOf(schedule, 1), ElementsAre(Place(2, 1), Place(3, 0), Place(1, 1)));
  EXPECT_THAT(PlacesOf(schedule, 2), ElementsAre(Place(0, 0), Place(0, 1)));
}

TEST_F(CtaUnitsTest, OddCtasReverseTheirUnitsIfTheCountsRequestIt) {
  int32_t counts[4] = {4, 0, 4, true};
  int32_t order[4] = {2, 0, 3, 1};
  WorkItem items[4];
  WorkItem first[4];
  KernelSchedule schedule;
  schedule.counts = counts;
  schedule.deal_order = order;
  schedule.items = items;
  schedule.queue_first = first;
  schedule.num_head_tiles = 2;
  schedule.heads_per_queue = 2;
  schedule.num_queues = 1;
  schedule.num_ctas = 3;
  schedule.may_be_dealt = true;
  EXPECT_THAT(PlacesOf(schedule, 0), ElementsAre(Place(2, 0), Place(3, 1), Place(1, 0)));
  EXPECT_EQ(CtaUnits(schedule, 0).FirstItem(), first);
  EXPECT_THAT(PlacesOf(schedule, 1), ElementsAre(Place(1, 1), Place(3, 0), Place(2, 1)));
  EXPECT_EQ(CtaUnits(schedule, 1).FirstItem(), items + 1);
  EXPECT_THAT(PlacesOf(schedule, 2), ElementsAre(Place(0, 0), Place(0, 1)));
  EXPECT_EQ(CtaUnits(schedule, 2).FirstItem(), first + 1);
  counts[3] = false;
  EXPECT_THAT(PlacesOf(schedule, 1), ElementsAre(Place(2, 1), Place(3, 0), Place(1, 1)));
}

TEST_F(CtaUnitsTest, CtasWithoutAQueueHaveNoUnits) {
  int32_t counts[4] = {3, 0, 0, 0};
  int32_t queue_items[3] = {0, 1, 3};
  KernelSchedule schedule;
  schedule.counts = counts;
  schedule.queue_items = queue_items;
  schedule.num_head_tiles = 2;
  schedule.heads_per_queue = 2;
  schedule.num_queues = 2;
  schedule.num_ctas = 5;
  schedule.may_be_dealt = true;
  EXPECT_THAT(PlacesOf(schedule, 1), ElementsAre(Place(0, 1)));
  EXPECT_THAT(PlacesOf(schedule, 2), ElementsAre(Place(1, 0), Place(2, 0)));
  EXPECT_THAT(PlacesOf(schedule, 4), ElementsAre());
}

TEST_F(CtaUnitsTest, RoundRobinBalancesPrompts) {
  for (const Prompts& prompts :
       {Prompts{{2048}, {2048}}, Prompts{{8192}, {8192}},
        Prompts{{2048, 2048, 2048}, {2048, 9000, 2100}}, Prompts{{1024, 1024}, {4096, 1024}},
        Prompts{{1900, 700, 300, 64}, {1900, 700, 300, 64}}}) {
    const std::vector<int64_t> steps = StepsOfCtas(prompts, /*is_dealt=*/true);
    int64_t all = 0;
    for (const int64_t of_cta : steps) all += of_cta;
    const int64_t most = *std::max_element(steps.begin(), steps.end());
    EXPECT_LE(static_cast<double>(most) * static_cast<double>(steps.size()),
              1.15 * static_cast<double>(all))
        << prompts.query_lens[0];
  }
}

// A prompt of `keys` tokens, `new_tokens` of them new, and decodes.
Prompts Mixed(int new_tokens, int keys, int num_decodes, int keys_of_decodes, bool are_both_ways) {
  Prompts mixed{{new_tokens}, {keys}};
  mixed.query_lens.insert(mixed.query_lens.end(), num_decodes, 1);
  mixed.lens.insert(mixed.lens.end(), num_decodes, keys_of_decodes);
  mixed.are_both_ways = are_both_ways;
  return mixed;
}

TEST_F(CtaUnitsTest, ReversedOrderOverlapsDecodesWithPrompts) {
  StepsOfCtas(Mixed(1024, 1024, 64, 4096, true), /*is_dealt=*/true);
  StepsOfCtas(Mixed(1024, 4096, 64, 4096, true), /*is_dealt=*/true);
  StepsOfCtas(Mixed(2048, 2048, 32, 1024, true), /*is_dealt=*/true);
}

TEST_F(CtaUnitsTest, MuchShorterDecodesRunLast) {
  StepsOfCtas(Mixed(512, 512, 64, 256, false), /*is_dealt=*/true);
  StepsOfCtas(Mixed(256, 1280, 128, 512, false), /*is_dealt=*/true);
}

TEST_F(CtaUnitsTest, RowsOfAboutOneRoundAreNotSplit) {
  StepsOfCtas({{512}, {8704}}, /*is_dealt=*/true);
  StepsOfCtas({std::vector<int32_t>(6, 300), std::vector<int32_t>(6, 300), 4, 4}, true);
  StepsOfCtas({std::vector<int32_t>(5, 632), std::vector<int32_t>(5, 632), 4, 4}, true);
}

TEST_F(CtaUnitsTest, SmallNumbersOfLongTilesAreSplit) {
  const std::vector<int64_t> steps = StepsOfCtas({{128}, {65536}}, /*is_dealt=*/false);
  // Four Q tiles of 1,024 KV tiles in 16 queues.
  EXPECT_LE(*std::max_element(steps.begin(), steps.end()), 4 * 1024 / 16 + 1);
  StepsOfCtas({{2048}, {2048}, 8, 1}, false);
  // 17 long Q tiles for 8 heads: unsplit, four CTAs would have two of them.
  Prompts many_short{{544}, {8736}};
  many_short.query_lens.resize(41, 64);
  many_short.lens.resize(41, 64);
  StepsOfCtas(many_short, false);
}

TEST_F(CtaUnitsTest, LongTilesAreOrderedByBucket) { StepsOfCtas({{4096}, {40000}}, true); }

TEST_F(CtaUnitsTest, SupportsMoreHeadsThanCtas) {
  StepsOfCtas({{300, 500}, {300, 500}, 256, 256}, true);
}

}  // namespace
}  // namespace reprise
