// Tests decodes whose CTA queues have unsplit Q tiles (attention/tile_schedule/tile_schedule.h),
// with more rows than queues and similar lengths, and a few long rows, which have wide CTAs. In
// graphs whose contents change. Small, for compute-sanitizer.

#include <algorithm>
#include <cstdint>

#include "gtest/gtest.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/cross_product.h"
#include "reprise/attention/testing/gpu_check.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/testing/host_tile_schedule.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/dtype.h"

namespace reprise {
namespace {

constexpr uint64_t kSeed = 17;
constexpr int kSms = 4;  // for unsplit Q tiles, at most three per CTA queue

class AttentionWholeRangesSmallGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  // The options of the fixture's schedule.
  static TileScheduleOptions OptionsOf(const PagedFixture& fixture, const CrossProductCase& c) {
    TileScheduleOptions options =
        OptionsFor(fixture.Batch(OnHost), fixture.Layer(OnHost), *c.fixture.q_dtype);
    options.device.num_sms = c.num_sms;
    return options;
  }

  // Whether the fixture's CTA queues have several unsplit Q tiles each, although a Stream-K
  // schedule would split them.
  static bool HasWholeRanges(const PagedFixture& fixture, const CrossProductCase& c) {
    TileScheduleOptions options = OptionsOf(fixture, c);
    const auto num_merges = [&] {
      HostTileSchedule work(options);
      EXPECT_TRUE(TileScheduleOnHost(fixture.Batch(OnHost), WindowOf(fixture.Layer(OnHost)),
                                     work.schedule())
                      .ok());
      return work.schedule().main.counts[1];
    };
    if (num_merges() > 0) return false;
    options.costs->border = options.costs->border_percent = 0;
    return num_merges() > 0;
  }

  // The maximum number of splits of a Q tile if the fixture has wide CTAs; otherwise 0.
  static int SplitsInWideCtas(const PagedFixture& fixture, const CrossProductCase& c) {
    const PagedBatch batch = fixture.Batch(OnHost);
    const AttentionParams layer = fixture.Layer(OnHost);
    HostTileSchedule work(OptionsOf(fixture, c));
    EXPECT_TRUE(TileScheduleOnHost(batch, WindowOf(layer), work.schedule()).ok());
    const KernelSchedule& schedule = work.schedule().main;
    const int window_left = layer.window_left.value_or(-1);
    const int cluster = ClusterOf(schedule, batch.num_rows, window_left);
    if (!IsWide(schedule, cluster, batch.num_rows, window_left)) return 0;
    int most = 1;
    for (int m = 0; m < schedule.counts[1]; ++m)
      most = std::max(most, schedule.merges[m].num_partials);
    return most;
  }

  void Count(const PagedFixture& fixture, const CrossProductCase& c) {
    num_whole_ += HasWholeRanges(fixture, c);
    const int splits = SplitsInWideCtas(fixture, c);
    num_wide_ += splits > 0;
    num_in_groups_ += splits > kMaxSplitsAtOnce;
  }

  // Runs a case eagerly and in a replayed graph, and compares both with the reference.
  void Check(CrossProductCase c, DType q_dtype, DType kv_dtype) {
    c.fixture.allowed = DirectFeatures().Without(
        {Feature::kCommonPrefix, Feature::kContextParallel, Feature::kWindow});
    c.fixture.q_dtype = q_dtype;
    c.fixture.kv_dtype = kv_dtype;
    c.products = IsFp8(kv_dtype) ? DType::kFloat16 : q_dtype;
    c.out.dtype = q_dtype;
    ExpectNoFault(c, [&](const ExpectedPair<PagedFixture>& expected, const GpuOutcome&) {
      Count(expected.first.fixture, c);
      Count(expected.second.fixture, c);
    });
  }

  // Checks random batches with many rows for 4 or 8 CTA queues.
  void CheckManyRows(DType q_dtype, DType kv_dtype, int max_query_len, int rounds, uint64_t seed) {
    Random random(seed);
    for (int round = 0; round < rounds && !HasFatalFailure(); ++round) {
      const int num_kv_heads = random.Pick({1, 2});
      CrossProductCase c;
      c.num_sms = kSms;
      c.fixture = {.seed = random.Bits(),
                   .max_rows = 3 * 2 * kSms / num_kv_heads,
                   .max_query_len = max_query_len,
                   .min_seq_len = 200,
                   .max_seq_len = random.Pick({250, 250, 300}),
                   .num_kv_heads = num_kv_heads,
                   .group_size = random.Pick({1, 4}),
                   .head_dim_qk = random.Pick({64, 128})};
      Check(c, q_dtype, kv_dtype);
    }
  }

  void CheckLongRows(DType q_dtype, DType kv_dtype, int max_seq_len, int rounds, uint64_t seed) {
    Random random(seed);
    for (int round = 0; round < rounds && !HasFatalFailure(); ++round) {
      const int num_kv_heads = random.Pick({1, 2});
      CrossProductCase c;
      c.fixture = {.seed = random.Bits(),
                   .max_rows = 3 - num_kv_heads,
                   .max_query_len = random.Pick({1, 4}),
                   .min_seq_len = max_seq_len / 2,
                   .max_seq_len = max_seq_len,
                   .num_kv_heads = num_kv_heads,
                   .group_size = random.Pick({1, 4}),
                   .head_dim_qk = random.Pick({96, 128})};
      Check(c, q_dtype, kv_dtype);
    }
  }

  int num_whole_ = 0;
  int num_wide_ = 0;
  int num_in_groups_ = 0;  // with wide CTAs and more splits than kMaxSplitsAtOnce
};

TEST_F(AttentionWholeRangesSmallGpuTest, UnsplitTilesMatchTheReference) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    CheckManyRows(dtype, dtype, 1, 30, kSeed);
    CheckManyRows(dtype, dtype, 4, 12, kSeed + 1);
  }
  CheckManyRows(DType::kBFloat16, DType::kFp8E4M3, 1, 20, kSeed + 2);
  EXPECT_GE(num_whole_, 15);
}

TEST_F(AttentionWholeRangesSmallGpuTest, WideCtasMatchTheReference) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    CheckLongRows(dtype, dtype, 5000, 8, kSeed + 3);
    CheckLongRows(dtype, dtype, 17000, 3, kSeed + 4);
  }
  CheckLongRows(DType::kBFloat16, DType::kFp8E4M3, 5000, 6, kSeed + 5);
  CheckLongRows(DType::kFloat16, DType::kFp8E5M2, 5000, 3, kSeed + 6);
  EXPECT_GE(num_wide_, 20);
  EXPECT_GE(num_in_groups_, 4);
}

}  // namespace
}  // namespace reprise
