// The queue of batches in flight.

#include "reprise/engine/scheduling/open_batches.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kMaxOpen = 2;

OpenBatches MakeOpen() {
  return OpenBatches(RunnerShape{.max_num_seqs = 3, .max_steps_in_flight = kMaxOpen});
}

std::vector<OpenRow> RowsOf(int num_tokens, int num_rows = 1) {
  return std::vector<OpenRow>(num_rows, OpenRow{.num_tokens = num_tokens});
}

TEST(OpenBatchesTest, TakesTheOldestAndTheNewestBatch) {
  OpenBatches open = MakeOpen();
  EXPECT_TRUE(open.empty());
  std::vector<OpenRow> rows = RowsOf(5);
  open.Push(rows);
  EXPECT_THAT(rows, IsEmpty());
  rows = RowsOf(6, 2);
  open.Push(rows);
  EXPECT_EQ(open.size(), 2);
  EXPECT_EQ(open.oldest()[0].num_tokens, 5);
  open.CheckInvariants();
  std::vector<OpenRow> newest = open.TakeNewest();
  EXPECT_THAT(newest, SizeIs(2));
  EXPECT_EQ(newest[0].num_tokens, 6);
  open.Recycle(std::move(newest));
  std::vector<OpenRow> oldest = open.TakeOldest();
  EXPECT_EQ(oldest[0].num_tokens, 5);
  open.Recycle(std::move(oldest));
  EXPECT_TRUE(open.empty());
  open.CheckInvariants();
}

TEST(OpenBatchesTest, DoesNotAllocateInTheSteadyState) {
  OpenBatches open = MakeOpen();
  std::vector<OpenRow> rows;
  rows.reserve(3);
  const AllocationCounter allocations;
  for (int step = 0; step < 20; ++step) {
    for (int i = 0; i < 3; ++i) rows.push_back({.num_tokens = step});
    open.Push(rows);
    ASSERT_TRUE(rows.empty());
    if (open.size() < kMaxOpen) continue;
    std::vector<OpenRow> oldest = open.TakeOldest();
    ASSERT_EQ(oldest[2].num_tokens, step - 1);
    open.Recycle(std::move(oldest));
  }
  EXPECT_EQ(allocations.count(), 0);
}

TEST(OpenBatchesDeathTest, DiesWithoutABatchAndBeyondTheMaximum) {
  OpenBatches open = MakeOpen();
  EXPECT_DEATH(open.TakeOldest(), "empty");
  EXPECT_DEATH(open.TakeNewest(), "empty");
  EXPECT_DEATH(open.oldest(), "empty");
  std::vector<OpenRow> none;
  EXPECT_DEATH(open.Push(none), "empty");
  for (int i = 0; i < kMaxOpen; ++i) {
    std::vector<OpenRow> rows = RowsOf(1);
    open.Push(rows);
  }
  std::vector<OpenRow> rows = RowsOf(1);
  EXPECT_DEATH(open.Push(rows), "max_steps_in_flight = 2");
}

TEST(OpenBatchesDeathTest, CheckInvariantsFindsABatchThatWasNotRecycled) {
  OpenBatches open = MakeOpen();
  std::vector<OpenRow> rows = RowsOf(1);
  open.Push(rows);
  open.TakeOldest();
  EXPECT_DEATH(open.CheckInvariants(), "2");
}

}  // namespace
}  // namespace reprise
