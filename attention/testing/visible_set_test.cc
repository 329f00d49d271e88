#include "reprise/attention/testing/visible_set.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/metadata/batch_builder.h"
#include "reprise/attention/testing/schedule_generator.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(VisibleSetTest, PairsAreReadThroughTheBlockTable) {
  // One row with two queries over 3 keys, in blocks 7 and 4 of 2 tokens.
  const int32_t loc[] = {0, 2};
  const int32_t seq_lens[] = {3};
  const int32_t table[] = {7, 4};
  const PagedBatch batch = {.query_start_loc = loc,
                            .seq_lens = seq_lens,
                            .block_table = table,
                            .block_table_stride = 2,
                            .num_rows = 1,
                            .num_tokens = 2,
                            .num_tables = 1,
                            .max_blocks = 2};
  EXPECT_THAT(
      VisibleSet(PlainLayer(), batch, 2),
      ElementsAre(VisiblePair{0, 1, 0, 14}, VisiblePair{0, 1, 1, 15}, VisiblePair{1, 2, 0, 14},
                  VisiblePair{1, 2, 1, 15}, VisiblePair{1, 2, 2, 8}));
}

TEST(VisibleSetTest, KeysOfARaggedBatchAreRowsOfK) {
  const int32_t loc[] = {0, 1, 2};
  const int32_t keys[] = {0, 1, 3};
  const RaggedBatch batch = {
      .query_start_loc = loc, .key_start_loc = keys, .num_rows = 2, .num_tokens = 2, .num_keys = 3};
  EXPECT_THAT(
      VisibleSet(PlainLayer(), batch),
      ElementsAre(VisiblePair{0, 0, 0, 0}, VisiblePair{1, 1, 0, 1}, VisiblePair{1, 1, 1, 2}));
}

TEST(VisibleSetTest, DescribesTheFirstDifference) {
  const VisiblePairs one = {{0, 1, 0, 14}};
  EXPECT_EQ(DifferenceOf(one, one), "");
  EXPECT_THAT(DifferenceOf({}, one), HasSubstr("got nothing, expected token 0 at 1 sees slot 14"));
  EXPECT_THAT(DifferenceOf({{0, 1, 0, 14}, {0, 1, 0, 14}}, one), HasSubstr("got 2 pairs"));
}

// The batch of a schedule agrees with the definition of causal attention.
TEST(VisibleSetTest, BatchOfAScheduleMatchesTheDefinition) {
  int64_t num_pairs = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const Schedule schedule = DrawSchedule({}, random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << schedule.Description());
    const ScheduledBatchMemory memory(schedule,
                                      {.num_rows = schedule.num_rows() + random.Int(0, 3),
                                       .num_tokens = schedule.num_tokens() + random.Int(0, 9)});
    const VisiblePairs expected =
        SetByDefinition(schedule, [](int64_t p, int64_t key) { return key <= p; });
    ASSERT_EQ(
        DifferenceOf(VisibleSet(PlainLayer(), memory.built.batch, schedule.block_size), expected),
        "");
    num_pairs += static_cast<int64_t>(expected.size());
  }
  EXPECT_GT(num_pairs, 1000000);  // the schedules are not empty
}

}  // namespace
}  // namespace reprise
