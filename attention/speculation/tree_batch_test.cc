#include "reprise/attention/speculation/tree_batch.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/draft_definitions.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/random_cases.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Memory = BuilderMemory<TreeBatchArgs>;

// The example of the header: 10 tokens in blocks {7, 2, 9, 5}, block_size 4, and a tree of 5 nodes.
class OneTree : public ::testing::Test {
 protected:
  OneTree() {
    args.slots = slots;
    args.seq_len = seq_len;
    args.num_nodes = num_nodes;
    args.parents = parents;
    args.parent_stride = 5;
    args.tokens = tokens;
    args.token_stride = 5;
    args.table = {entries, 4, 1, 4, 4, 10};
    args.max_context_len = 100;
    args.num_rows = 1;
    args.num_tokens = 6;
    args.max_nodes = 5;
    args.arrays = {token_ids, positions, slot_mapping, query_start_loc, seq_lens,
                   table_row, nullptr,   tail_len,     tail_mask,       row_faults};
  }

  int32_t slots[1] = {0};
  int32_t seq_len[1] = {10};
  int32_t num_nodes[1] = {5};
  int32_t parents[5] = {-1, 0, 0, 1, 2};
  int32_t tokens[5] = {70, 71, 72, 73, 74};
  int32_t entries[4] = {7, 2, 9, 5};
  int32_t token_ids[6], positions[6], query_start_loc[2], seq_lens[1], table_row[1], tail_len[1],
      row_faults[1];
  int64_t slot_mapping[6];
  uint64_t tail_mask[6];
  TreeBatchArgs args;
};

TEST_F(OneTree, PositionsEncodeDepthAndSlotsEncodeOrder) {
  const absl::StatusOr<PagedBatch> batch = BuildTreeBatch(args);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(seq_lens[0], 15);
  EXPECT_EQ(tail_len[0], 5);
  EXPECT_THAT(tail_mask, ElementsAre(0b1, 0b11, 0b101, 0b1011, 0b10101, 0));
  EXPECT_THAT(positions, ElementsAre(10, 11, 11, 12, 12, 0));
  EXPECT_THAT(slot_mapping, ElementsAre(38, 39, 20, 21, 22, -1));
  EXPECT_THAT(token_ids, ElementsAre(70, 71, 72, 73, 74, 0));
  EXPECT_EQ(batch->query_positions, positions);
  EXPECT_EQ(batch->tail_mask, tail_mask);
  EXPECT_EQ(batch->max_query_len, 5);
}

TEST_F(OneTree, RowsMayShareParentsAndReadTheRootFromFirstToken) {
  const int32_t first_token[1] = {7};
  args.first_token = first_token;
  args.parent_stride = 0;
  ASSERT_TRUE(BuildTreeBatch(args).ok());
  EXPECT_THAT(token_ids, ElementsAre(7, 70, 71, 72, 73, 0));
}

TEST_F(OneTree, TreeAtTheContextLimitIsClippedToItsFirstNodes) {
  args.max_context_len = 13;
  ASSERT_TRUE(BuildTreeBatch(args).ok());
  EXPECT_EQ(seq_lens[0], 13);
  EXPECT_EQ(tail_len[0], 3);
  EXPECT_THAT(positions, ElementsAre(10, 11, 11, 0, 0, 0));
  seq_len[0] = 13;
  ASSERT_TRUE(BuildTreeBatch(args).ok());
  EXPECT_EQ(seq_lens[0], 0);
  EXPECT_EQ(query_start_loc[1], 0);
}

TEST_F(OneTree, RejectsInvalidArguments) {
  const auto refusal = [&] {
    const absl::Status status = BuildTreeBatch(args).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  parents[3] = 4;
  EXPECT_EQ(refusal(),
            "rows[0]: a node does not follow its parent: parents[3]: expected -1 to 2 (a "
            "parent comes before its children), got 4");
  EXPECT_EQ(seq_lens[0], 0);
  EXPECT_THAT(slot_mapping, ElementsAre(-1, -1, -1, -1, -1, -1));
  parents[4] = 3;
  EXPECT_THAT(refusal(), HasSubstr("a cycle through nodes 3, 4"));
  num_nodes[0] = 6;
  EXPECT_THAT(refusal(), HasSubstr("num_nodes 6, max_nodes 5"));
  args.max_nodes = 65;
  EXPECT_EQ(refusal(), "max_nodes: expected 1 to 64, got 65");
  args.max_nodes = 5;
  args.arrays.tail_mask = nullptr;
  EXPECT_EQ(refusal(), "arrays.tail_mask: expected an array, got none");
}

TEST(TreeBatchTest, VisibleKeysMatchTheDefinition) {
  int num_nodes = 0;
  ForEachRandomShape(20000, DrawDraftShape, [&](Random& random, const DraftShape& shape) {
    Memory memory([&](ArrayCarver& carver) { return CarveTreeBatch(shape, carver); });
    TreeBatchArgs& args = memory.args();
    DrawTreeBatch(random, shape, 0, args);
    AttentionParams layer = PlainLayer();
    if (random.OneIn(2)) layer.window_left = random.Pick({0, 1, 2, random.Int(0, 40)});
    const AllocationCounter allocations;
    const absl::StatusOr<PagedBatch> batch = BuildTreeBatch(args);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(batch.ok()) << batch.status();

    for (int r = 0; r < shape.num_rows; ++r) {
      const int first = args.arrays.query_start_loc[r];
      for (int token = first; token < args.arrays.query_start_loc[r + 1]; ++token, ++num_nodes) {
        ASSERT_EQ(args.arrays.slot_mapping[token],
                  SlotByDefinition(args.table, args.slots[r],
                                   args.seq_len[args.slots[r]] + token - first));
      }
    }
    const VisiblePairs expected = PairsOf(TreeByDefinition(args, layer.window_left), args.table);
    ASSERT_EQ(DifferenceOf(VisibleSet(layer, *batch, shape.block_size), expected), "");
  });
  EXPECT_GT(num_nodes, 100000);
}

TEST(TreeBatchTest, InvalidValuesMakeRowsInertWithoutOtherEffects) {
  int num_faults = 0;
  const auto draw = [](Random& random) {
    DraftShape shape = DrawDraftShape(random);
    if (random.OneIn(3)) shape.num_tokens = random.Int(0, shape.num_tokens);
    return shape;
  };
  ForEachRandomShape(5000, draw, [&](Random& random, const DraftShape& shape) {
    Memory memory([&](ArrayCarver& carver) { return CarveTreeBatch(shape, carver); });
    TreeBatchArgs& args = memory.args();
    DrawTreeBatch(random, shape, 0.1, args);
    TreeBatchOnHost(args);
    for (int r = 0; r < shape.num_rows; ++r) {
      const bool is_bad = args.arrays.row_faults[r] != 0;
      num_faults += is_bad;
      ASSERT_TRUE(!is_bad || (args.arrays.seq_lens[r] == 0 && args.arrays.tail_len[r] == 0));
      ASSERT_LE(args.arrays.query_start_loc[r], args.arrays.query_start_loc[r + 1]);
      for (int t = args.arrays.query_start_loc[r]; t < args.arrays.query_start_loc[r + 1]; ++t) {
        ASSERT_EQ(args.arrays.slot_mapping[t] == -1, is_bad);
        ASSERT_EQ(args.arrays.tail_mask[t] == 0, is_bad);
      }
    }
    ASSERT_LE(args.arrays.query_start_loc[shape.num_rows], shape.num_tokens);
  });
  EXPECT_GT(num_faults, 500);
}

}  // namespace
}  // namespace reprise
