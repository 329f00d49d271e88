// Tests the cooperative combine (attention/cuda/decode/cooperative_combine.h): with all CTAs
// waiting for each other, with CTAs that have more units to process, and with more CTAs in the
// schedule than the card runs at a time. Runs eagerly and in graphs whose contents change, against
// the float64 reference. Small, for compute-sanitizer.

#include <algorithm>
#include <array>
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

// The distribution of random rows.
struct Rows {
  uint64_t seed = 0;
  int rounds = 4;
  int num_sms = 132;
  TileScheduleMode mode = TileScheduleMode::kBalanced;
  int max_rows = 2;
  int max_query_len = 8;
  std::array<int, 2> group_sizes = {2, 4};  // drawn from these
  int min_seq_len = 1500;
  int max_seq_len = 5000;
  DType q_dtype = DType::kBFloat16;
  DType kv_dtype = DType::kBFloat16;
};

class AttentionJointSmallGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  // Adds the splits and CTAs of the fixture's schedules to the counts below.
  void Count(const PagedFixture& fixture, const CrossProductCase& c) {
    const PagedBatch batch = fixture.Batch(OnHost);
    const AttentionParams layer = fixture.Layer(OnHost);
    TileScheduleOptions options = OptionsFor(batch, layer, *c.fixture.q_dtype);
    options.device.num_sms = c.num_sms;
    options.mode = c.mode;
    HostTileSchedule work(options);
    ASSERT_TRUE(TileScheduleOnHost(batch, WindowOf(layer), work.schedule()).ok());
    Count(work.schedule().main);
    if (work.schedule().has_short_rows()) Count(work.schedule().short_rows);
  }

  void Count(const KernelSchedule& schedule) {
    int num_queues = 0;
    for (int column = 0; column < schedule.num_queues; ++column) {
      const int begin = schedule.queue_items[column];
      const int end = schedule.queue_items[column + 1];
      num_queues += begin < end;
      for (int i = begin; i < end; ++i) {
        const WorkItem& item = schedule.items[i];
        if (item.is_joint == 0) continue;
        ++num_splits_;
        if (i + 1 < end) ++num_that_do_not_wait_;
      }
    }
    max_ctas_ = std::max(max_ctas_, num_queues * schedule.heads_per_queue);
  }

  // Runs cases eagerly and in a replayed graph, and compares both with the reference.
  void Check(const Rows& rows) {
    Random random(rows.seed);
    for (int round = 0; round < rows.rounds && !HasFatalFailure(); ++round) {
      CrossProductCase c;
      c.num_sms = rows.num_sms;
      c.mode = rows.mode;
      c.fixture = {.seed = random.Bits(),
                   .allowed = DirectFeatures().Without(
                       {Feature::kCommonPrefix, Feature::kContextParallel, Feature::kWindow}),
                   .max_rows = rows.max_rows,
                   .max_query_len = rows.max_query_len,
                   .min_seq_len = rows.min_seq_len,
                   .max_seq_len = rows.max_seq_len,
                   .q_dtype = rows.q_dtype,
                   .kv_dtype = rows.kv_dtype,
                   .num_kv_heads = random.Pick({1, 2}),
                   .group_size = random.Pick({rows.group_sizes[0], rows.group_sizes[1]}),
                   .head_dim_qk = random.Pick({64, 96, 128})};
      c.products = IsFp8(rows.kv_dtype) ? DType::kFloat16 : rows.q_dtype;
      c.out.dtype = rows.q_dtype;
      ExpectNoFault(c, [&](const ExpectedPair<PagedFixture>& expected, const GpuOutcome&) {
        Count(expected.first.fixture, c);
        Count(expected.second.fixture, c);
      });
    }
  }

  int num_splits_ = 0;  // splits that are combined cooperatively
  int num_that_do_not_wait_ = 0;
  int max_ctas_ = 0;  // maximum number of CTAs with items per schedule
};

TEST_F(AttentionJointSmallGpuTest, SplitsOfWaitingCtasMatchTheReference) {
  Check({.seed = 1, .rounds = 8});
  Check({.seed = 2, .q_dtype = DType::kFloat16, .kv_dtype = DType::kFloat16});
  Check({.seed = 3, .kv_dtype = DType::kFp8E4M3});
  Check({.seed = 4, .max_rows = 1, .max_query_len = 1, .min_seq_len = 15000, .max_seq_len = 17000});
  EXPECT_GE(num_splits_, 200);
}

TEST_F(AttentionJointSmallGpuTest, LastArriverCombinesSlicesOfBusyCtas) {
  Check({.seed = 5,
         .rounds = 8,
         .num_sms = 3,
         .max_rows = 9,
         .max_query_len = 2,
         .group_sizes = {8, 8},
         .min_seq_len = 300});
  Check({.seed = 6,
         .num_sms = 3,
         .max_rows = 9,
         .max_query_len = 2,
         .group_sizes = {8, 8},
         .min_seq_len = 300,
         .q_dtype = DType::kFloat16,
         .kv_dtype = DType::kFp8E5M2});
  EXPECT_GE(num_that_do_not_wait_, 20);
}

TEST_F(AttentionJointSmallGpuTest, DeterministicSplitsMatchTheReference) {
  Check({.seed = 7, .rounds = 10, .mode = TileScheduleMode::kDeterministic, .max_rows = 12});
  Check({.seed = 8, .num_sms = 2, .mode = TileScheduleMode::kDeterministic, .max_rows = 12});
  EXPECT_GE(num_splits_, 60);
}

// A GPU with 132 SMs runs 264 CTAs at a time.
TEST_F(AttentionJointSmallGpuTest, ScheduleMayHaveMoreCtasThanRunAtATime) {
  Check({.seed = 9, .rounds = 6, .num_sms = 1000, .max_rows = 40, .max_query_len = 4});
  EXPECT_GT(max_ctas_, 264);
  EXPECT_GE(num_splits_, 200);
}

}  // namespace
}  // namespace reprise
