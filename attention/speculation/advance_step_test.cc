#include "reprise/attention/speculation/advance_step.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/random_cases.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Memory = BuilderMemory<AdvanceStepArgs>;

// A decode row, a prefill of 5 tokens and a padded row, with tables {3, 4} and {1, 2} and
// block_size 16.
class ThreeRows : public ::testing::Test {
 protected:
  ThreeRows() {
    args.seq_lens = seq_lens;
    args.table_row = table_row;
    args.sampled = sampled;
    args.table = {entries, 2, 2, 2, 16, 9};
    args.max_context_len = 30;
    args.num_rows = 3;
    args.num_tokens = 6;
    args.arrays = {token_ids, positions, slot_mapping, query_start_loc, seq_lens,
                   table_row, nullptr,   nullptr,      nullptr,         row_faults};
  }

  int32_t seq_lens[3] = {18, 5, 0};
  int32_t table_row[3] = {1, 0, 0};
  int32_t sampled[3] = {70, 71, -5};
  int32_t entries[4] = {3, 4, 1, 2};
  int32_t token_ids[6] = {1, 2, 3, 4, 5, 6};
  int32_t positions[6] = {17, 0, 1, 2, 3, 4};
  int64_t slot_mapping[6] = {33, 48, 49, 50, 51, 52};
  int32_t query_start_loc[4] = {0, 1, 6, 6};
  int32_t row_faults[3];
  AdvanceStepArgs args;
};

TEST_F(ThreeRows, PrefillsBecomeDecodesInPlace) {
  const absl::StatusOr<PagedBatch> batch = AdvanceStep(args);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(token_ids, ElementsAre(70, 71, 0, 0, 0, 0));
  EXPECT_THAT(positions, ElementsAre(18, 5, 0, 0, 0, 0));
  EXPECT_THAT(slot_mapping, ElementsAre(34, 53, -1, -1, -1, -1));
  EXPECT_THAT(query_start_loc, ElementsAre(0, 1, 2, 2));
  EXPECT_THAT(seq_lens, ElementsAre(19, 6, 0));
  EXPECT_THAT(table_row, ElementsAre(1, 0, 0));
  EXPECT_EQ(batch->max_query_len, 1);
}

TEST_F(ThreeRows, RowWithoutABlockStaysInert) {
  entries[0] = 0;
  entries[2] = 0;  // block of old tokens: not checked
  ASSERT_FALSE(AdvanceStep(args).ok());
  EXPECT_THAT(row_faults, ElementsAre(0, static_cast<int>(RowFault::kNoBlock), 0));
  EXPECT_THAT(seq_lens, ElementsAre(19, 0, 0));
  EXPECT_THAT(query_start_loc, ElementsAre(0, 1, 1, 1));
  entries[0] = 3;
  ASSERT_TRUE(AdvanceStep(args).ok());
  EXPECT_THAT(seq_lens, ElementsAre(20, 0, 0));
}

TEST_F(ThreeRows, SampledMayAliasTokenIds) {
  args.sampled = token_ids;
  ASSERT_TRUE(AdvanceStep(args).ok());
  EXPECT_THAT(token_ids, ElementsAre(1, 2, 0, 0, 0, 0));
  // The tokens of later rows move up if a row becomes inert.
  seq_lens[0] = 30;
  ASSERT_FALSE(AdvanceStep(args).ok());
  EXPECT_THAT(token_ids, ElementsAre(2, 0, 0, 0, 0, 0));
}

// The example of the header: row 0 is in its second block, and row 1 stays in its first block.
TEST_F(ThreeRows, PackedTableGrowsWithTheRows) {
  int32_t indptr[4] = {9, 9, 9, 9}, indices[5] = {-7, -7, -7, -7, -7}, last[3] = {9, 9, 9};
  args.packed = {indptr, indices, last, 3, 5, 16};
  ASSERT_TRUE(AdvanceStep(args).ok());
  EXPECT_THAT(indptr, ElementsAre(0, 2, 3, 3));
  EXPECT_THAT(indices, ElementsAre(1, 2, 3, -7, -7));
  EXPECT_THAT(last, ElementsAre(3, 6, 0));
  // After a total of 12 steps row 1 has 17 tokens and needs a second block.
  for (int step = 0; step < 9; ++step) ASSERT_TRUE(AdvanceStep(args).ok());
  EXPECT_THAT(last, ElementsAre(12, 15, 0));
  for (int step = 0; step < 2; ++step) ASSERT_TRUE(AdvanceStep(args).ok());
  EXPECT_THAT(indptr, ElementsAre(0, 2, 4, 4));
  EXPECT_THAT(indices, ElementsAre(1, 2, 3, 4, -7));
  EXPECT_THAT(last, ElementsAre(14, 1, 0));
}

TEST_F(ThreeRows, RowWithoutRoomInThePackedTableAndLaterRowsAreInert) {
  int32_t indptr[4], indices[2], last[3];
  args.packed = {indptr, indices, last, 3, 2, 16};
  seq_lens[2] = 1;
  sampled[2] = 72;
  const absl::Status status = AdvanceStep(args).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("packed.max_indices 2"));
  const int no_room = static_cast<int>(RowFault::kNoRoom);
  EXPECT_THAT(row_faults, ElementsAre(0, no_room, no_room));
  EXPECT_THAT(seq_lens, ElementsAre(19, 0, 0));
  EXPECT_THAT(token_ids, ElementsAre(70, 0, 0, 0, 0, 0));
  EXPECT_THAT(indptr, ElementsAre(0, 2, 2, 2));
  EXPECT_THAT(indices, ElementsAre(1, 2));
  EXPECT_THAT(last, ElementsAre(3, 0, 0));
}

TEST_F(ThreeRows, EachFaultIsReported) {
  seq_lens[0] = 30;
  sampled[1] = -1;
  seq_lens[2] = 1;
  table_row[2] = 2;
  const absl::Status status = AdvanceStep(args).status();
  EXPECT_THAT(row_faults,
              ElementsAre(static_cast<int>(RowFault::kLength), static_cast<int>(RowFault::kToken),
                          static_cast<int>(RowFault::kTableRow)));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rows[0]: a length"));
  EXPECT_THAT(seq_lens, Each(0));
  EXPECT_THAT(slot_mapping, Each(-1));
  args.num_tokens = 2;
  EXPECT_EQ(AdvanceStep(args).status().message(), "num_tokens: expected at least 3, got 2");
}

TEST(AdvanceStepTest, NextTokenAttendsToAllTokensOfTheSequence) {
  ForEachRandomShape(20000, DrawDraftShape, [&](Random& random, const DraftShape& shape) {
    Memory memory([&](ArrayCarver& carver) { return CarveAdvanceStep(shape, carver); });
    AdvanceStepArgs& args = memory.args();
    DrawAdvanceStep(random, shape, 0, args);
    AttentionParams layer = PlainLayer();
    if (random.OneIn(2)) layer.window_left = random.Int(0, 20);
    const std::vector<int32_t> before(args.seq_lens, args.seq_lens + shape.num_rows);
    const AllocationCounter allocations;
    const absl::StatusOr<PagedBatch> batch = AdvanceStep(args);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(batch.ok()) << batch.status();
    VisiblePairs expected;
    int token = 0;
    for (int r = 0; r < shape.num_rows; ++r) {
      if (before[r] == 0) continue;
      const int64_t position = before[r];
      ASSERT_EQ(args.arrays.token_ids[token], args.sampled[r]);
      ASSERT_EQ(args.arrays.positions[token], position);
      ASSERT_EQ(args.arrays.slot_mapping[token],
                SlotByDefinition(args.table, args.table_row[r], position));
      for (int64_t key = 0; key <= position; ++key) {
        if (layer.window_left && key < position - *layer.window_left) continue;
        expected.push_back(
            {token, position, key, SlotByDefinition(args.table, args.table_row[r], key)});
      }
      ++token;
    }
    ASSERT_EQ(DifferenceOf(VisibleSet(layer, *batch, shape.block_size), expected), "");
    for (int t = token; t < shape.num_tokens; ++t) ASSERT_EQ(args.arrays.slot_mapping[t], -1);
  });
}

// For any content of the arrays, the packed table holds the blocks of each live row. No row is live
// after the first row without room.
TEST(AdvanceStepTest, PackedTablesHoldTheBlocksOfEachLiveRow) {
  int num_full = 0;
  const auto draw = [](Random& random) {
    DraftShape shape = DrawDraftShape(random);
    shape.packed_indices = random.Int(0, shape.num_rows * shape.max_blocks);
    return shape;
  };
  ForEachRandomShape(5000, draw, [&](Random& random, const DraftShape& shape) {
    Memory memory([&](ArrayCarver& carver) { return CarveAdvanceStep(shape, carver); });
    AdvanceStepArgs& args = memory.args();
    DrawAdvanceStep(random, shape, random.OneIn(2) ? 0 : 0.1, args);
    AdvanceStepOnHost(args);
    std::vector<int32_t> indices;
    bool is_full = false;
    for (int r = 0; r < shape.num_rows; ++r) {
      SCOPED_TRACE(testing::Message() << "row " << r);
      ASSERT_EQ(args.packed.block_indptr[r], static_cast<int>(indices.size()));
      const int32_t seq_len = args.arrays.seq_lens[r];
      is_full |= args.arrays.row_faults[r] == static_cast<int>(RowFault::kNoRoom);
      ASSERT_FALSE(is_full && seq_len > 0);
      int last_block_len = 0;
      for (int32_t key = 0; key < seq_len; ++key) {
        if (key % shape.block_size == 0) {
          indices.push_back(args.table.entries[args.arrays.table_row[r] * args.table.row_stride +
                                               key / shape.block_size]);
        }
        last_block_len = key % shape.block_size + 1;
      }
      ASSERT_EQ(args.packed.last_block_len[r], last_block_len);
    }
    ASSERT_EQ(args.packed.block_indptr[shape.num_rows], static_cast<int>(indices.size()));
    ASSERT_LE(static_cast<int>(indices.size()), shape.packed_indices);
    ASSERT_TRUE(std::equal(indices.begin(), indices.end(), args.packed.block_indices));
    num_full += is_full;
  });
  EXPECT_GT(num_full, 500);
}

TEST(AdvanceStepTest, InvalidValuesMakeRowsInertWithoutOtherEffects) {
  int num_faults = 0;
  ForEachRandomShape(5000, DrawDraftShape, [&](Random& random, const DraftShape& shape) {
    Memory memory([&](ArrayCarver& carver) { return CarveAdvanceStep(shape, carver); });
    AdvanceStepArgs& args = memory.args();
    DrawAdvanceStep(random, shape, 0.1, args);
    AdvanceStepOnHost(args);
    for (int r = 0; r < shape.num_rows; ++r) {
      const bool is_bad = args.arrays.row_faults[r] != 0;
      num_faults += is_bad;
      const bool is_live = args.arrays.seq_lens[r] > 0;
      ASSERT_FALSE(is_bad && is_live);
      ASSERT_EQ(args.arrays.query_start_loc[r + 1] - args.arrays.query_start_loc[r], is_live);
    }
  });
  EXPECT_GT(num_faults, 500);
}

}  // namespace
}  // namespace reprise
