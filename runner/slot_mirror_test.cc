#include "runner/slot_mirror.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr SlotLimits kLimits = {.num_slots = 2,
                                .max_num_tokens = 6,
                                .max_seq_len = 8,
                                .max_blocks = 2,
                                .block_size = 4,
                                .num_blocks = 5,
                                .vocab_size = 100};

constexpr SlotJoin kJoin0[] = {{.slot = 0}};
constexpr BlockTableUpdate kBlock0[] = {{.slot = 0, .column = 0, .block = 1}};
constexpr int32_t kPrompt[] = {5, 6, 7};

ScheduledBatch Enter() {
  static const ScheduledRow rows[] = {{.slot = SlotId(0), .tokens = kPrompt}};
  return {.joins = kJoin0, .updates = kBlock0, .rows = rows};
}

std::string Refused(SlotMirror& mirror, const ScheduledBatch& batch) {
  const auto demand = mirror.Advance(batch);
  EXPECT_EQ(demand.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(demand.status().message());
}

TEST(SlotMirrorTest, FollowsLengthsWithoutTheDevice) {
  SlotMirror mirror(kLimits);
  const auto prefill = mirror.Advance(Enter());
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  EXPECT_EQ(prefill->shape.num_tokens, 3);
  EXPECT_EQ(prefill->shape.max_query_len, 3);
  EXPECT_EQ(prefill->features, SamplingFeatures::kGreedy);

  const ScheduledRow decode[] = {{.slot = SlotId(0)}};
  const auto step = mirror.Advance({.rows = decode});
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->shape.num_seqs, 1);
  EXPECT_EQ(step->shape.max_query_len, 1);
  EXPECT_EQ(step->shape.max_seq_len, 4);
  EXPECT_EQ(mirror.seq_len(SlotId(0)), 4);
}

TEST(SlotMirrorTest, ARefusedBatchChangesNothing) {
  SlotMirror mirror(kLimits);
  ASSERT_TRUE(mirror.Advance(Enter()).ok());
  const SlotId leaves[] = {SlotId(0)};
  const ScheduledRow rows[] = {{.slot = SlotId(0), .tokens = kPrompt}};  // it has just left
  EXPECT_THAT(Refused(mirror, {.leaves = leaves, .rows = rows}),
              HasSubstr("slot 0 has no sequence"));
  EXPECT_EQ(mirror.seq_len(SlotId(0)), 3);  // it has not
}

TEST(SlotMirrorTest, ASlotMayLeaveAndBeJoinedInOneBatch) {
  SlotMirror mirror(kLimits);
  ASSERT_TRUE(mirror.Advance(Enter()).ok());
  const SlotId leaves[] = {SlotId(0)};
  ScheduledBatch again = Enter();
  EXPECT_THAT(Refused(mirror, again), HasSubstr("slot 0 is taken"));
  again.leaves = leaves;
  EXPECT_TRUE(mirror.Advance(again).ok());
  EXPECT_EQ(mirror.seq_len(SlotId(0)), 3);
}

TEST(SlotMirrorTest, NamesTheFeaturesThatSamplingNeeds) {
  SlotMirror mirror(kLimits);
  const SlotJoin join[] = {{.slot = 0, .sampling = {.temperature = 0.5f}}};
  ScheduledRow row[] = {{.slot = SlotId(0), .tokens = kPrompt, .output = RowOutput::kNone}};
  auto demand = mirror.Advance({.joins = join, .updates = kBlock0, .rows = row});
  ASSERT_TRUE(demand.ok()) << demand.status();
  EXPECT_EQ(demand->features, SamplingFeatures::kGreedy);  // nothing is sampled yet
  const int32_t last[] = {9};
  row[0] = {.slot = SlotId(0), .tokens = last};
  demand = mirror.Advance({.rows = row});
  ASSERT_TRUE(demand.ok()) << demand.status();
  EXPECT_EQ(demand->features, SamplingFeatures::kGeneral);
}

TEST(SlotMirrorTest, RefusesBatchesThatDoNotFitByPartAndValue) {
  SlotMirror mirror(kLimits);
  const SlotId bad_leave[] = {SlotId(2)};
  EXPECT_THAT(Refused(mirror, {.leaves = bad_leave}),
              HasSubstr("leaves: slot must be in [0, 2), got 2"));
  const SlotJoin bad_join[] = {{.slot = -1}};
  EXPECT_THAT(Refused(mirror, {.joins = bad_join}), HasSubstr("joins: slot"));
  const SlotJoin long_join[] = {{.slot = 0, .seq_len = 9}};
  EXPECT_THAT(Refused(mirror, {.joins = long_join}), HasSubstr("[0, 8], got 9"));
  const SlotJoin hot[] = {{.slot = 0, .sampling = {.temperature = -1.0f}}};
  EXPECT_THAT(Refused(mirror, {.joins = hot}), HasSubstr("temperature"));
  const SlotJoin no_mass[] = {{.slot = 0, .sampling = {.top_p = 0.0f}}};
  EXPECT_THAT(Refused(mirror, {.joins = no_mass}), HasSubstr("top_p"));
  EXPECT_THAT(Refused(mirror, {.updates = kBlock0}), HasSubstr("updates: slot 0 has no sequence"));
  const BlockTableUpdate gap[] = {{.slot = 0, .column = 1, .block = 1}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = gap}), HasSubstr("got 1"));
  const BlockTableUpdate null_block[] = {{.slot = 0, .column = 0, .block = 0}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = null_block}),
              HasSubstr("[1, 5), got 0"));

  const ScheduledRow stranger[] = {{.slot = SlotId(1), .tokens = kPrompt}};
  EXPECT_THAT(Refused(mirror, {.rows = stranger}), HasSubstr("rows: slot 1 has no sequence"));
  const ScheduledRow blind[] = {{.slot = SlotId(0)}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = kBlock0, .rows = blind}),
              HasSubstr("no last token yet"));
  const ScheduledRow twice[] = {{.slot = SlotId(0), .tokens = kPrompt},
                                {.slot = SlotId(0), .tokens = kPrompt}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = kBlock0, .rows = twice}),
              HasSubstr("occurs twice"));
  const int32_t wild[] = {100};
  const ScheduledRow wild_row[] = {{.slot = SlotId(0), .tokens = wild}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = kBlock0, .rows = wild_row}),
              HasSubstr("[0, 100), got 100"));
  const int32_t five[] = {1, 2, 3, 4, 5};
  const ScheduledRow five_row[] = {{.slot = SlotId(0), .tokens = five}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = kBlock0, .rows = five_row}),
              HasSubstr("room for 5 tokens, got 1 blocks of 4"));
  const int32_t nine[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const ScheduledRow nine_row[] = {{.slot = SlotId(0), .tokens = nine}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .rows = nine_row}),
              HasSubstr("at most 8 tokens, got 9"));
  const int32_t seven[] = {1, 2, 3, 4, 5, 6, 7};
  const ScheduledRow seven_row[] = {{.slot = SlotId(0), .tokens = seven}};
  const BlockTableUpdate two[] = {{.slot = 0, .column = 0, .block = 1},
                                  {.slot = 0, .column = 1, .block = 2}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = two, .rows = seven_row}),
              HasSubstr("at most 6, got 7"));
}

}  // namespace
}  // namespace reprise
