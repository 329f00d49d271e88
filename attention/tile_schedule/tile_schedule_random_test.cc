// Schedules of random, hostile batches: every key exactly once, and never more than planned.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/host_tile_schedule.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_check.h"

namespace reprise {
namespace {

constexpr uint64_t kSeed = 20261121;

TileScheduleOptions DrawOptions(const AttentionParams& layer, Random& random) {
  TileScheduleOptions options = {
      .num_q_heads = layer.num_q_heads,
      .num_kv_heads = layer.num_kv_heads,
      .head_dim_qk = layer.head_dim_qk,
      .head_dim_v = layer.head_dim_v,
      .max_query_len = random.Pick({1, 1, 500}),  // at least
      .device = {.num_sms = random.Pick({1, 2, 5, 132})},
      .shared_tiles = random.Pick({SharedTiles::kLarge, SharedTiles::kSmall}),
      .row_assignment = random.Pick({RowAssignment::kByBatch, RowAssignment::kByRow})};
  const int kind = random.Int(0, 2);
  if (kind == 1) {
    options.mode = TileScheduleMode::kDeterministic;
    options.decode_query_len = random.Pick({1, 5, 17, 64});
  }
  if (kind == 2) options.shared_prefix = SharedPrefix::kTaken;
  return options;
}

template <typename Batch>
void BuildAndCheck(const Batch& batch, const AttentionParams& layer, TileScheduleOptions options) {
  options.max_rows = batch.num_rows;
  options.max_tokens = batch.num_tokens;
  options.max_query_len = std::max(options.max_query_len, batch.max_query_len);
  options.max_seq_len = batch.max_seq_len;
  HostTileSchedule work(options);
  // the second round builds over the content of the first
  for (int round = 0; round < 2; ++round) {
    const absl::Status built = TileScheduleOnHost(batch, WindowOf(layer), work.schedule()).status();
    ASSERT_TRUE(built.ok()) << built;
    const absl::Status checked = CheckTileSchedule(work.schedule(), batch, WindowOf(layer));
    EXPECT_TRUE(checked.ok()) << checked;
    EXPECT_TRUE(work.IsGuardIntact());
  }
}

TEST(TileScheduleRandomTest, PagedFixturesAreCoveredExactlyOnce) {
  Random random(kSeed);
  for (int round = 0; round < 1500; ++round) {
    const uint64_t seed = random.Bits();
    SCOPED_TRACE("seed " + std::to_string(seed));
    const PagedFixture fixture = MakePagedFixture({.seed = seed,
                                                   .max_query_len = random.Pick({1, 12, 80}),
                                                   .max_seq_len = random.Pick({40, 300, 1500}),
                                                   .block_size = 16,
                                                   .head_dim_qk = 16,
                                                   .head_dim_v = 16});
    SCOPED_TRACE(fixture.description);
    const AttentionParams layer = fixture.Layer(OnHost);
    BuildAndCheck(fixture.Batch(OnHost), layer, DrawOptions(layer, random));
  }
}

TEST(TileScheduleRandomTest, RaggedFixturesAreCoveredExactlyOnce) {
  Random random(kSeed + 1);
  for (int round = 0; round < 500; ++round) {
    const uint64_t seed = random.Bits();
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RaggedFixture fixture = MakeRaggedFixture(
        {.seed = seed, .max_query_len = 40, .max_seq_len = 300, .head_dim_qk = 16});
    SCOPED_TRACE(fixture.description);
    const AttentionParams layer = fixture.Layer(OnHost);
    BuildAndCheck(fixture.Batch(OnHost), layer, DrawOptions(layer, random));
  }
}

// Returns the number of shared keys.
int BuildAndCheckShared(const PagedFixture& fixture, Random& random) {
  const AttentionParams layer = fixture.Layer(OnHost);
  const PagedBatch batch = fixture.Batch(OnHost);
  TileScheduleOptions options = DrawOptions(layer, random);
  options.mode = TileScheduleMode::kBalanced;
  options.shared_prefix = SharedPrefix::kTaken;
  options.max_rows = batch.num_rows;
  options.max_tokens = batch.num_tokens;
  options.max_query_len = std::max(1, batch.max_query_len);
  options.max_seq_len = batch.max_seq_len;
  HostTileSchedule work(options);
  EXPECT_TRUE(TileScheduleOnHost(batch, WindowOf(layer), work.schedule()).ok());
  const absl::Status checked = CheckTileSchedule(work.schedule(), batch, WindowOf(layer));
  EXPECT_TRUE(checked.ok()) << checked;
  int shared_keys = 0;
  for (int i = 0; i < work.schedule().main.counts[0]; ++i) {
    const WorkItem& item = work.schedule().main.items[i];
    if (item.row == kSharedRow) shared_keys = std::max(shared_keys, item.key_end);
  }
  return shared_keys;
}

TEST(TileScheduleRandomTest, SharesCommonPrefixesThatEveryQuerySees) {
  Random random(kSeed + 3);
  int num_shared = 0;
  for (int round = 0; round < 600; ++round) {
    const uint64_t seed = random.Bits();
    SCOPED_TRACE("seed " + std::to_string(seed));
    const PagedFixture fixture = MakePagedFixture({.seed = seed,
                                                   .required = {Feature::kCommonPrefix},
                                                   .max_rows = random.Pick({2, 6, 40}),
                                                   .max_query_len = random.Pick({1, 12, 80}),
                                                   .min_seq_len = random.Pick({1, 200}),
                                                   .max_seq_len = 600,
                                                   .block_size = 16,
                                                   .head_dim_qk = 16,
                                                   .head_dim_v = 16});
    SCOPED_TRACE(fixture.description);
    const int shared_keys = BuildAndCheckShared(fixture, random);
    ASSERT_LE(shared_keys, fixture.common_prefix_len[0]);
    EXPECT_EQ(shared_keys % kWorkStepKeys, 0);
    num_shared += shared_keys > 0;
  }
  EXPECT_GT(num_shared, 60);
}

// Only lengths, of any magnitude, up to the exact bounds of the plan.
TEST(TileScheduleRandomTest, AnyLengthsStayWithinThePlan) {
  Random random(kSeed + 2);
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed + 2) + " round " + std::to_string(round));
    const int num_rows = random.Int(0, random.Pick({1, 8, 300}));
    const int max_query_len = random.Pick({1, 1, 4, 17, 33, 100});
    const int max_seq_len = random.Pick({1, 64, 65, 500, 5000, 200000});
    std::vector<int32_t> query_start_loc = {0};
    std::vector<int32_t> seq_lens;
    int common_prefix_len = max_seq_len;
    for (int r = 0; r < num_rows; ++r) {
      const int query_len = random.Pick({1, max_query_len, random.Int(0, max_query_len)});
      query_start_loc.push_back(query_start_loc.back() + query_len);
      seq_lens.push_back(random.Pick({0, max_seq_len, random.Int(0, max_seq_len)}));
      if (query_len > 0 && seq_lens.back() > 0) {
        common_prefix_len = std::min(common_prefix_len, seq_lens.back());
      }
    }
    // The checker visits every shared key, so their number is limited.
    common_prefix_len = std::min(common_prefix_len, 300);
    const PagedBatch batch = {.query_start_loc = query_start_loc.data(),
                              .seq_lens = seq_lens.data(),
                              .common_prefix_len = &common_prefix_len,
                              .num_rows = num_rows,
                              .num_tokens = query_start_loc.back(),
                              .max_query_len = max_query_len,
                              .max_seq_len = max_seq_len};
    AttentionParams layer;
    layer.num_kv_heads = random.Pick({1, 3, 8, 40});
    layer.num_q_heads = layer.num_kv_heads * random.Pick({1, 4, 7, 20, 100});
    layer.head_dim_qk = layer.head_dim_v = random.Pick({64, 128, 256});
    // Without a window, the checker finds the first key immediately and remains fast.
    BuildAndCheck(batch, layer, DrawOptions(layer, random));
  }
}

}  // namespace
}  // namespace reprise
