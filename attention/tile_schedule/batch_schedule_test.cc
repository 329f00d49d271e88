// BatchSchedule: attention rejects other batches, and launches its kernels in the form of the
// build.

#include <cstdint>
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

Rows Decodes(int num_rows) { return Rows(std::vector<int32_t>(num_rows, 8192)); }

TileScheduleOptions OptionsWith(int max_tokens,
                                RowAssignment row_assignment = RowAssignment::kByBatch) {
  return {.num_q_heads = 32,
          .num_kv_heads = 8,
          .head_dim_qk = 128,
          .head_dim_v = 128,
          .max_rows = 16,
          .max_tokens = max_tokens,
          .max_query_len = max_tokens / 16,
          .max_seq_len = 8192,
          .row_assignment = row_assignment};
}

std::string MessageFor(const PagedBatch& batch, const LayerWindow& window,
                       const BatchSchedule& work) {
  const absl::Status status = CheckBatchSchedule(batch, window, work);
  EXPECT_EQ(status.code(),
            status.ok() ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(BatchScheduleTest, BuildersReturnTheValueOfWorkOf) {
  const Rows decodes = Decodes(4);
  HostTileSchedule work(OptionsWith(16));
  const LayerWindow window = {.left = 400, .right = 3};
  const absl::StatusOr<BatchSchedule> built =
      TileScheduleOnHost(decodes.batch, window, work.schedule());
  ASSERT_TRUE(built.ok()) << built.status();
  for (const BatchSchedule& value : {*built, WorkOf(decodes.batch, window, work.schedule())}) {
    EXPECT_EQ(value.schedule.main.items, work.schedule().main.items);
    EXPECT_EQ(value.num_rows, 4);
    EXPECT_EQ(value.longest_short_row, 0);
    EXPECT_EQ(value.window_left, 400);
    EXPECT_EQ(value.window_right, 3);
    EXPECT_EQ(value.main_form.cluster, ClusterOf(work.schedule().main, 4, 400));
  }
}

TEST(BatchScheduleTest, RejectsADifferentNumberOfRows) {
  const Rows four = Decodes(4), five = Decodes(5);
  HostTileSchedule work(OptionsWith(16));
  const BatchSchedule of_four = WorkOf(four.batch, {}, work.schedule());
  EXPECT_EQ(MessageFor(four.batch, {}, of_four), "");
  EXPECT_THAT(MessageFor(five.batch, {}, of_four), HasSubstr("expected num_rows 4, got 5"));
  RaggedBatch ragged = {.num_rows = 4, .num_tokens = 4, .max_query_len = 1, .max_seq_len = 8192};
  const BatchSchedule of_five = WorkOf(five.batch, {}, work.schedule());
  EXPECT_THAT(std::string(CheckBatchSchedule(ragged, {}, of_five).message()),
              HasSubstr("expected num_rows 5, got 4"));
  EXPECT_THAT(MessageFor(four.batch, {}, BatchSchedule{.schedule = work.schedule()}),
              HasSubstr("expected num_rows 0, got 4"));
  EXPECT_THAT(MessageFor(four.batch, {}, BatchSchedule{}),
              HasSubstr("work is an empty TileSchedule"));
}

// Captured graphs of several batches share a schedule. A replay does not change the values of other
// batches.
TEST(BatchScheduleTest, LaterBuildsDoNotChangeEarlierBatchSchedules) {
  const Rows two = Decodes(2), five = Decodes(5);
  HostTileSchedule work(OptionsWith(16));
  const BatchSchedule of_two = *TileScheduleOnHost(two.batch, {.left = 400}, work.schedule());
  const BatchSchedule of_five = *TileScheduleOnHost(five.batch, {}, work.schedule());
  ASSERT_EQ(of_two.main_form.cluster, 4);
  ASSERT_EQ(of_five.main_form.cluster, 1);
  // As a replay of the first batch's graph would.
  ASSERT_TRUE(TileScheduleOnHost(two.batch, {.left = 400}, work.schedule()).ok());
  EXPECT_EQ(MessageFor(two.batch, {.left = 400}, of_two), "");
  EXPECT_EQ(of_two.main_form.cluster, 4);
  EXPECT_THAT(MessageFor(five.batch, {}, of_two), HasSubstr("expected num_rows 2, got 5"));
}

TEST(BatchScheduleTest, RejectsAWiderWindowButNotANarrowerWindow) {
  const Rows decodes = Decodes(2);
  HostTileSchedule work(OptionsWith(16));
  BatchSchedule value = WorkOf(decodes.batch, {.left = 400, .right = 3}, work.schedule());
  EXPECT_EQ(MessageFor(decodes.batch, {.left = 400, .right = 3}, value), "");
  EXPECT_EQ(MessageFor(decodes.batch, {.left = 0, .right = 0}, value), "");
  EXPECT_THAT(MessageFor(decodes.batch, {.left = 401, .right = 3}, value),
              HasSubstr("window_left at most 400, got 401"));
  EXPECT_THAT(MessageFor(decodes.batch, {.right = 3}, value),
              HasSubstr("window_left at most 400, got none"));
  EXPECT_THAT(MessageFor(decodes.batch, {.left = 4}, value),
              HasSubstr("window_right at most 3, got none"));
  value = WorkOf(decodes.batch, {}, work.schedule());
  EXPECT_EQ(MessageFor(decodes.batch, {.left = 7}, value), "");
}

// A narrower window would have clusters, whose kernel has fewer queues than the schedule. The items
// of the last queues would then have no CTA.
TEST(BatchScheduleTest, ClusterSizeFollowsTheWindowOfTheBuild) {
  const Rows decodes = Decodes(2);
  HostTileSchedule work(OptionsWith(16));
  const KernelSchedule& schedule = work.schedule().main;
  ASSERT_EQ(ClusterOf(schedule, 2, -1), 1);
  ASSERT_EQ(ClusterOf(schedule, 2, 400), 4);
  BatchSchedule built = *TileScheduleOnHost(decodes.batch, {}, work.schedule());
  EXPECT_EQ(built.main_form.cluster, 1);
  EXPECT_EQ(MessageFor(decodes.batch, {.left = 400}, built), "");
  EXPECT_EQ(QueuesOf(schedule, built.main_form), schedule.num_queues);
  // Some items are in queues that a kernel with clusters of four does not have.
  ASSERT_LT(QueuesInUse(schedule, 4), schedule.num_queues);
  EXPECT_LT(schedule.queue_items[QueuesInUse(schedule, 4)], schedule.counts[0]);
  built = *TileScheduleOnHost(decodes.batch, {.left = 400}, work.schedule());
  EXPECT_EQ(built.main_form.cluster, 4);
  EXPECT_EQ(MessageFor(decodes.batch, {.left = 100}, built), "");
  EXPECT_EQ(QueuesOf(schedule, built.main_form), QueuesInUse(schedule, 4));
  EXPECT_EQ(schedule.queue_items[QueuesInUse(schedule, 4)], schedule.counts[0]);
}

// A kernel with wide CTAs has half the queues.
TEST(BatchScheduleTest, WideCtasFollowTheWindowOfTheBuild) {
  const Rows decodes = Decodes(2);
  TileScheduleOptions options = OptionsWith(16);
  options.num_kv_heads = 1;
  options.num_q_heads = 4;
  HostTileSchedule work(options);
  const KernelSchedule& schedule = work.schedule().main;
  BatchSchedule built = *TileScheduleOnHost(decodes.batch, {}, work.schedule());
  EXPECT_TRUE(built.main_form.is_wide);
  EXPECT_EQ(QueuesOf(schedule, built.main_form), schedule.wide_queues);
  EXPECT_EQ(schedule.queue_items[schedule.wide_queues], schedule.counts[0]);
  built = *TileScheduleOnHost(decodes.batch, {.left = 400}, work.schedule());
  EXPECT_FALSE(built.main_form.is_wide);
}

// The bounds of the batch decide whether short rows use the second schedule.
TEST(BatchScheduleTest, RejectsBoundsThatChangeTheAssignmentOfRows) {
  Rows rows = Decodes(16);
  rows.batch.max_query_len = 100;
  rows.batch.num_tokens = 115;
  HostTileSchedule work(OptionsWith(16 * 512));
  ASSERT_TRUE(work.schedule().has_short_rows());
  const BatchSchedule value = WorkOf(rows.batch, {}, work.schedule());
  EXPECT_EQ(MessageFor(rows.batch, {}, value), "");
  PagedBatch other = rows.batch;
  other.max_seq_len = 64;
  ASSERT_NE(WorkOf(other, {}, work.schedule()).longest_short_row, value.longest_short_row);
  EXPECT_THAT(MessageFor(other, {}, value), HasSubstr("other bounds"));
}

TEST(BatchScheduleTest, SchedulesWithAssignmentByRowAcceptAnyBatch) {
  const Rows four = Decodes(4), five = Decodes(5);
  HostTileSchedule work(OptionsWith(16, RowAssignment::kByRow));
  const BatchSchedule value = WorkOf(four.batch, {.left = 5}, work.schedule());
  EXPECT_EQ(MessageFor(five.batch, {}, value), "");
  Rows many = Decodes(17);
  EXPECT_THAT(MessageFor(many.batch, {}, value),
              HasSubstr("num_rows of the batch must not exceed"));
}

}  // namespace
}  // namespace reprise
