#include "reprise/attention/metadata/window_rows.h"

#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/testing/schedule_generator.h"
#include "reprise/attention/testing/visible_set.h"

namespace reprise {
namespace {

TEST(WindowRowsTest, AWindowOfTokensIsOneLessThanThem) {
  EXPECT_EQ(WindowLeft(4096, WindowCount::kTokens), 4095);
  EXPECT_EQ(WindowLeft(1, WindowCount::kTokens), 0);
  EXPECT_EQ(WindowLeft(4095, WindowCount::kKeysBefore), 4095);
  EXPECT_EQ(WindowLeft(0, WindowCount::kKeysBefore), 0);
}

TEST(WindowRowsTest, AbsentAndMinusOneAreNoWindow) {
  for (WindowCount count : {WindowCount::kTokens, WindowCount::kKeysBefore}) {
    EXPECT_EQ(WindowLeft(std::nullopt, count), std::nullopt);
    EXPECT_EQ(WindowLeft(-1, count), std::nullopt);
  }
  EXPECT_EQ(WindowLeft(0, WindowCount::kTokens), std::nullopt);
}

TEST(WindowRowsTest, ColumnsWhollyLeftOfTheWindowAreCounted) {
  // The query at 20 sees 15 .. 20: of blocks of 4 tokens 0 .. 2 are left of it.
  EXPECT_EQ(FirstPositionSeen(20, 5), 15);
  EXPECT_EQ(NumColumnsLeftOfWindow(20, 5, 4), 3);
  EXPECT_EQ(NumColumnsLeftOfWindow(21, 5, 4), 4);  // sees 16 and on: one more
  EXPECT_EQ(NumColumnsLeftOfWindow(3, 5, 4), 0);
  EXPECT_EQ(NumColumnsLeftOfWindow(20, INT32_MAX, 4), 0);
}

// What a manager may drop is nothing that a query reads: with null blocks there, queries see the
// same keys, on both sides of them.
TEST(WindowRowsTest, KeysSeenAreThoseOfTheWindowWithNullBlocksLeftOfIt) {
  int64_t num_dropped = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    Schedule schedule = DrawSchedule({}, random);
    AttentionParams layer = PlainLayer();
    layer.window_left = random.Pick({0, 1, random.Int(0, 64)});
    if (random.OneIn(2)) layer.window_right = random.Pick({0, 1, random.Int(0, 64)});
    const bool causal = random.OneIn(2);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", window " << *layer.window_left << ", "
                                    << layer.window_right.value_or(-1) << ", causal " << causal
                                    << ", " << schedule.Description());
    const VisiblePairs expected = SetByDefinition(schedule, [&](int64_t p, int64_t key) {
      return key >= p - *layer.window_left && (!causal || key <= p) &&
             (!layer.window_right || key <= p + *layer.window_right);
    });
    for (const BatchSequence& sequence : schedule.sequences) {
      const int64_t columns =
          NumColumnsLeftOfWindow(sequence.num_computed, *layer.window_left, schedule.block_size);
      for (int64_t column = 0; column < columns && sequence.query_len > 0; ++column) {
        schedule.entries[sequence.table_row * schedule.row_stride + column] = 0;
        ++num_dropped;
      }
    }
    const ScheduledBatchMemory memory(
        schedule, {.num_rows = schedule.num_rows(), .num_tokens = schedule.num_tokens()});
    PagedBatch batch = memory.built.batch;
    batch.causal = causal;
    ASSERT_EQ(DifferenceOf(VisibleSet(layer, batch, schedule.block_size), expected), "");
    // New tokens are to the right of every window: each has a slot.
    for (int64_t slot : memory.built.slot_mapping) ASSERT_GE(slot, schedule.block_size);
  }
  EXPECT_GT(num_dropped, 10000);
}

}  // namespace
}  // namespace reprise
