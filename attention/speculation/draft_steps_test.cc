#include "reprise/attention/speculation/draft_steps.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/draft_definitions.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The example of the header, in a table {7, 2, 9, 5} of blocks of 4, with a padded row.
TEST(DraftLevelTest, TheTreeGrowsByALevelAStep) {
  const int32_t slots[] = {0, -1};
  const int32_t seq_len[] = {10};
  const int32_t entries[] = {7, 2, 9, 5};
  int32_t positions[4], query_start_loc[3], seq_lens[2], table_row[2], tail_len[2], row_faults[2];
  int64_t slot_mapping[4];
  uint64_t tail_mask[4];
  std::vector<uint64_t> node_masks(2 * kMaxTreeNodes, ~uint64_t{0});
  DraftLevelArgs args;
  args.rows = {slots, seq_len, {entries, 4, 1, 4, 4, 10}, 100, 2};
  args.width = 2;
  args.node_masks = node_masks.data();
  args.arrays = {nullptr,   positions, slot_mapping, query_start_loc, seq_lens,
                 table_row, nullptr,   tail_len,     tail_mask,       row_faults};
  ASSERT_TRUE(BuildDraftLevel(args).ok());
  EXPECT_THAT(query_start_loc, ElementsAre(0, 2, 4));
  EXPECT_THAT(positions, ElementsAre(10, 10, 0, 0));
  EXPECT_THAT(slot_mapping, ElementsAre(38, 39, -1, -1));
  EXPECT_THAT(tail_mask, ElementsAre(0b1, 0b10, 0, 0));
  EXPECT_THAT(seq_lens, ElementsAre(12, 0));

  const int32_t under_1[] = {1, 1, -9, -9};
  args.parents = under_1;
  args.parent_stride = 2;
  args.step = 1;
  ASSERT_TRUE(BuildDraftLevel(args).ok());
  EXPECT_THAT(positions, ElementsAre(11, 11, 0, 0));
  EXPECT_THAT(tail_mask, ElementsAre(0b110, 0b1010, 0, 0));
  EXPECT_THAT(tail_len, ElementsAre(4, 0));

  const int32_t under_2_and_3[] = {2, 3, -9, -9};
  args.parents = under_2_and_3;
  args.step = 2;
  ASSERT_TRUE(BuildDraftLevel(args).ok());
  EXPECT_THAT(positions, ElementsAre(12, 12, 0, 0));
  EXPECT_THAT(tail_mask, ElementsAre(0b10110, 0b101010, 0, 0));
  EXPECT_THAT(slot_mapping, ElementsAre(22, 23, -1, -1));
  EXPECT_THAT(seq_lens, ElementsAre(16, 0));

  // The table has no room for a fourth level: it is clipped, which is not a fault.
  args.step = 3;
  ASSERT_TRUE(BuildDraftLevel(args).ok());
  EXPECT_THAT(seq_lens, ElementsAre(0, 0));
  EXPECT_THAT(slot_mapping, ElementsAre(-1, -1, -1, -1));

  const int32_t ahead[] = {2, 4, -9, -9};
  args.parents = ahead;
  args.step = 2;
  const absl::Status status = BuildDraftLevel(args).status();
  EXPECT_EQ(status.message(),
            "rows[0]: a node does not follow its parent: table row 0, seq_len 10, limit 16, "
            "step 2, parents 2 4");
  args.step = 32;
  EXPECT_EQ(BuildDraftLevel(args).status().message(),
            "(step + 1) * width: expected 1 to 64, got 66");
  args.step = 0;
  args.node_masks = nullptr;
  EXPECT_THAT(std::string(BuildDraftLevel(args).status().message()), HasSubstr("node_masks"));
}

TEST(DraftChainTest, EachStepHasOneKeyMore) {
  const int32_t slots[] = {1, -1, 0};
  const int32_t seq_len[] = {2, 6};
  const int32_t entries[] = {3, 4, 5, 6};  // blocks of 4: two of each row
  int32_t positions[9], query_start_loc[12], seq_lens[9], table_row[9], logits[9], row_faults[9];
  int64_t slot_mapping[9];
  DraftChainArgs args;
  args.rows = {slots, seq_len, {entries, 2, 2, 2, 4, 7}, 100, 3};
  args.num_steps = 3;
  args.arrays = {nullptr,   positions, slot_mapping, query_start_loc, seq_lens,
                 table_row, logits,    nullptr,      nullptr,         row_faults};
  ASSERT_TRUE(BuildDraftChain(args).ok());
  EXPECT_THAT(seq_lens, ElementsAre(7, 0, 3, 8, 0, 4, 0, 0, 5));  // row 0 is at its table's end
  EXPECT_THAT(positions, ElementsAre(6, 0, 2, 7, 0, 3, 0, 0, 4));
  EXPECT_THAT(slot_mapping, ElementsAre(26, -1, 14, 27, -1, 15, -1, -1, 16));
  EXPECT_THAT(query_start_loc, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(logits, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2));
  EXPECT_EQ(DraftChainBatch(args, 2).seq_lens, seq_lens + 6);
  args.num_steps = -1;
  EXPECT_EQ(BuildDraftChain(args).message(), "num_steps: expected 0 to 65535, got -1");
}

TEST(DraftChainTest, QueriesOfEveryStepSeeWhatTheDefinitionSays) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const DraftShape shape = DrawDraftShape(random);
    BuilderMemory<DraftChainArgs> memory(
        [&](ArrayCarver& carver) { return CarveDraftChain(shape, carver); });
    DraftChainArgs& args = memory.args();
    DrawDraftChain(random, shape, 0, args);
    const AllocationCounter allocations;
    const absl::Status status = BuildDraftChain(args);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status;
    AttentionParams layer = PlainLayer();
    if (random.OneIn(2)) layer.window_left = random.Int(0, 20);
    const int step = random.Int(0, shape.num_steps - 1);
    const VisiblePairs expected =
        PairsOf(DraftChainByDefinition(args, step, layer.window_left), args.rows.table);
    ASSERT_EQ(
        DifferenceOf(VisibleSet(layer, DraftChainBatch(args, step), shape.block_size), expected),
        "")
        << "seed " << seed << ", step " << step << ": " << shape;
  }
}

// A tree of all levels so far, in addition to the builder's masks.
TEST(DraftLevelTest, NodesOfEveryLevelSeeTheCacheAndTheirPath) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const DraftShape shape = DrawDraftShape(random);
    BuilderMemory<DraftLevelArgs> memory(
        [&](ArrayCarver& carver) { return CarveDraftLevel(shape, 0, carver); });
    DraftLevelArgs& args = memory.args();
    AttentionParams layer = PlainLayer();
    if (random.OneIn(2)) layer.window_left = random.Pick({0, 1, random.Int(0, 20)});
    std::vector<std::vector<int32_t>> trees(shape.num_rows);
    const int last_step = random.Int(0, shape.num_steps - 1);
    for (args.step = 0; args.step <= last_step; ++args.step) {
      DrawDraftLevel(random, shape, 0, args);
      const AllocationCounter allocations;
      const absl::StatusOr<PagedBatch> batch = BuildDraftLevel(args);
      ASSERT_EQ(allocations.count(), 0);
      ASSERT_TRUE(batch.ok()) << "seed " << seed << ": " << batch.status();
      for (int r = 0; r < shape.num_rows; ++r) {
        const auto first_node = static_cast<int64_t>(trees[r].size());
        trees[r].insert(trees[r].end(), args.parents + r * shape.width,
                        args.parents + (r + 1) * shape.width);
        for (int i = 0; i < shape.width; ++i) {
          const int64_t slot = args.arrays.slot_mapping[r * shape.width + i];
          if (slot < 0) continue;
          const int32_t row = args.rows.slots[r];
          ASSERT_EQ(slot, SlotByDefinition(args.rows.table, row,
                                           args.rows.seq_len[row] + first_node + i));
        }
      }
      const VisiblePairs expected =
          PairsOf(DraftLevelByDefinition(args, trees, layer.window_left), args.rows.table);
      ASSERT_EQ(DifferenceOf(VisibleSet(layer, *batch, shape.block_size), expected), "")
          << "seed " << seed << ", step " << args.step << ": " << shape;
    }
  }
}

TEST(DraftLevelTest, NonsenseMakesRowsInertAtThisLevelAndThoseAfterIt) {
  int num_faults = 0;
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    Random random(seed);
    const DraftShape shape = DrawDraftShape(random);
    BuilderMemory<DraftLevelArgs> memory(
        [&](ArrayCarver& carver) { return CarveDraftLevel(shape, 0, carver); });
    DraftLevelArgs& args = memory.args();
    for (args.step = 0; args.step < shape.num_steps; ++args.step) {
      DrawDraftLevel(random, shape, 0.1, args);
      DraftLevelOnHost(args);
      for (int r = 0; r < shape.num_rows; ++r) {
        num_faults += args.arrays.row_faults[r] != 0;
        const bool is_live = args.arrays.seq_lens[r] > 0;
        ASSERT_FALSE(is_live && args.arrays.row_faults[r] != 0);
        for (int t = r * shape.width; t < (r + 1) * shape.width; ++t) {
          ASSERT_EQ(args.arrays.slot_mapping[t] >= 0, is_live);
          ASSERT_EQ(args.arrays.tail_mask[t] != 0, is_live);
        }
      }
    }
  }
  EXPECT_GT(num_faults, 500);
}

}  // namespace
}  // namespace reprise
