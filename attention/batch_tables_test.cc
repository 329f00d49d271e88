#include "attention/batch_tables.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Rows of 6, 0 and 8 tokens at block_size 4, in table rows 2, -, 0; 9s are look-ahead blocks.
class BatchTablesTest : public ::testing::Test {
 protected:
  std::vector<int32_t> entries_ = {5, 3, 9, 9, 9, 9, 7, 2, 9};
  BlockTableView table_ = {.entries = entries_.data(),
                           .row_stride = 3,
                           .num_tables = 3,
                           .max_blocks = 3,
                           .block_size = 4};
  std::vector<int32_t> seq_lens_ = {6, 0, 8};
  std::vector<int32_t> table_row_ = {2, 0, 0};
  PagedBatch batch_ = {.seq_lens = seq_lens_.data(), .table_row = table_row_.data(), .num_rows = 3};
};

TEST_F(BatchTablesTest, PaddedRowsHoldTheirBlocksAndThenNullBlocks) {
  std::vector<int32_t> entries(3 * 4, 77);
  std::vector<int32_t> seq_lens(3, 77);
  const MutablePaddedBlockTable padded = {.entries = absl::MakeSpan(entries),
                                          .row_stride = 4,
                                          .max_blocks = 3,
                                          .seq_lens = absl::MakeSpan(seq_lens)};
  ASSERT_TRUE(GatherPaddedTable(batch_, table_, padded).ok());
  EXPECT_THAT(entries, ElementsAre(7, 2, 0, 77, 0, 0, 0, 77, 5, 3, 0, 77));
  EXPECT_THAT(seq_lens, ElementsAre(6, 0, 8));
}

TEST_F(BatchTablesTest, PackedRowsFollowEachOther) {
  std::vector<int32_t> indptr(4), indices(4), last(3);
  const MutablePackedBlockTable packed = {.block_indptr = absl::MakeSpan(indptr),
                                          .block_indices = absl::MakeSpan(indices),
                                          .last_block_len = absl::MakeSpan(last)};
  const absl::StatusOr<int> num_indices = GatherPackedTable(batch_, table_, packed);
  ASSERT_TRUE(num_indices.ok()) << num_indices.status();
  EXPECT_EQ(*num_indices, 4);
  EXPECT_THAT(indptr, ElementsAre(0, 2, 2, 4));
  EXPECT_THAT(indices, ElementsAre(7, 2, 5, 3));
  EXPECT_THAT(last, ElementsAre(2, 0, 4));
}

TEST_F(BatchTablesTest, BothFormsAreOneTable) {
  std::vector<int32_t> entries(9), seq_lens(3);
  const MutablePaddedBlockTable padded = {.entries = absl::MakeSpan(entries),
                                          .row_stride = 3,
                                          .max_blocks = 3,
                                          .seq_lens = absl::MakeSpan(seq_lens)};
  ASSERT_TRUE(GatherPaddedTable(batch_, table_, padded).ok());
  std::vector<int32_t> gathered_indices(4), indptr(4), indices(4), last(3);
  const MutablePackedBlockTable packed = {.block_indptr = absl::MakeSpan(indptr),
                                          .block_indices = absl::MakeSpan(indices),
                                          .last_block_len = absl::MakeSpan(last)};
  ASSERT_TRUE(
      PackBlockTable({.entries = entries, .row_stride = 3, .max_blocks = 3, .seq_lens = seq_lens},
                     4, packed)
          .ok());
  MutablePackedBlockTable gathered = packed;
  gathered.block_indices = absl::MakeSpan(gathered_indices);
  ASSERT_TRUE(GatherPackedTable(batch_, table_, gathered).ok());
  EXPECT_EQ(gathered_indices, indices);
}

TEST_F(BatchTablesTest, OutputsTooSmallAreNamedAndNothingIsWritten) {
  std::vector<int32_t> entries(9, 77), seq_lens(3, 77);
  MutablePaddedBlockTable padded = {.entries = absl::MakeSpan(entries),
                                    .row_stride = 3,
                                    .max_blocks = 1,
                                    .seq_lens = absl::MakeSpan(seq_lens)};
  EXPECT_EQ(GatherPaddedTable(batch_, table_, padded).message(),
            "padded.max_blocks: expected at least 2 for row 0, got 1");
  padded.max_blocks = 3;
  padded.entries = padded.entries.subspan(1);
  EXPECT_EQ(GatherPaddedTable(batch_, table_, padded).message(),
            "padded.entries: expected at least 9, got 8");
  EXPECT_THAT(entries, Each(77));
  EXPECT_THAT(seq_lens, Each(77));

  std::vector<int32_t> indptr(4, 77), indices(3, 77), last(3, 77);
  const MutablePackedBlockTable packed = {.block_indptr = absl::MakeSpan(indptr),
                                          .block_indices = absl::MakeSpan(indices),
                                          .last_block_len = absl::MakeSpan(last)};
  EXPECT_EQ(GatherPackedTable(batch_, table_, packed).status().message(),
            "packed.block_indices: expected at least 4, got 3");
  EXPECT_THAT(indptr, Each(77));
}

TEST_F(BatchTablesTest, AnIdleBatchPacksToOneZero) {
  batch_.num_rows = 0;
  std::vector<int32_t> indptr(1, 77);
  MutablePackedBlockTable packed;
  packed.block_indptr = absl::MakeSpan(indptr);
  const absl::StatusOr<int> num_indices = GatherPackedTable(batch_, table_, packed);
  ASSERT_TRUE(num_indices.ok()) << num_indices.status();
  EXPECT_EQ(*num_indices, 0);
  EXPECT_THAT(indptr, ElementsAre(0));
}

// A row of 3 queries over 21 keys (positions 18 .. 20), a pure prefill of 5, and a padded row.
class SelectedBatchTablesTest : public ::testing::Test {
 protected:
  std::vector<int32_t> entries_ = {11, 12, 13, 14, 15, 16, 99, 21, 22, 99, 99, 99, 99, 99};
  BlockTableView table_ = {.entries = entries_.data(),
                           .row_stride = 7,
                           .num_tables = 2,
                           .max_blocks = 7,
                           .block_size = 4};
  std::vector<int32_t> loc_ = {0, 3, 8, 8};
  std::vector<int32_t> seq_lens_ = {21, 5, 0};
  std::vector<int32_t> table_row_ = {0, 1, 0};
  PagedBatch batch_ = {.query_start_loc = loc_.data(),
                       .seq_lens = seq_lens_.data(),
                       .table_row = table_row_.data(),
                       .num_rows = 3};
  std::vector<int32_t> indptr_ = std::vector<int32_t>(4);
  std::vector<int32_t> indices_ = std::vector<int32_t>(8);
  std::vector<int32_t> last_ = std::vector<int32_t>(3);
  MutablePackedBlockTable packed_ = {.block_indptr = absl::MakeSpan(indptr_),
                                     .block_indices = absl::MakeSpan(indices_),
                                     .last_block_len = absl::MakeSpan(last_)};
};

TEST_F(SelectedBatchTablesTest, AllBlocksOfTheSequences) {
  EXPECT_EQ(*GatherPackedTable(batch_, table_, packed_), 8);
  EXPECT_THAT(indptr_, ElementsAre(0, 6, 8, 8));
  EXPECT_THAT(indices_, ElementsAre(11, 12, 13, 14, 15, 16, 21, 22));
  EXPECT_THAT(last_, ElementsAre(1, 1, 0));
}

TEST_F(SelectedBatchTablesTest, BlocksCachedBeforeTheStepAreNoneInAPurePrefill) {
  EXPECT_EQ(*GatherPackedTable(batch_, table_, packed_, {.blocks = TableBlocks::kComputed}), 5);
  EXPECT_THAT(indptr_, ElementsAre(0, 5, 5, 5));
  EXPECT_THAT(last_, ElementsAre(2, 0, 0));
}

TEST_F(SelectedBatchTablesTest, AWindowTakesTheLastBlocks) {
  const TableSelection window = {.blocks = TableBlocks::kWindow, .window_left = 5};
  EXPECT_EQ(*GatherPackedTable(batch_, table_, packed_, window), 5);
  EXPECT_THAT(indptr_, ElementsAre(0, 3, 5, 5));
  EXPECT_THAT(absl::MakeConstSpan(indices_).subspan(0, 5), ElementsAre(14, 15, 16, 21, 22));
  EXPECT_THAT(last_, ElementsAre(1, 1, 0));

  std::vector<int32_t> entries(3 * 3, 77), seq_lens(3, 77);
  const MutablePaddedBlockTable padded = {.entries = absl::MakeSpan(entries),
                                          .row_stride = 3,
                                          .max_blocks = 3,
                                          .seq_lens = absl::MakeSpan(seq_lens)};
  ASSERT_TRUE(GatherPaddedTable(batch_, table_, padded, window).ok());
  EXPECT_THAT(entries, ElementsAre(14, 15, 16, 21, 22, 0, 0, 0, 0));
  EXPECT_THAT(seq_lens, ElementsAre(9, 5, 0));
  EXPECT_EQ(GatherPackedTable(batch_, table_, packed_,
                              {.blocks = TableBlocks::kWindow, .window_left = -1})
                .status()
                .message(),
            "selection.window_left: expected at least 0, got -1");
}

TEST_F(SelectedBatchTablesTest, CumulativeKeyLengthsArePrefixSums) {
  std::vector<int32_t> key_start_loc(4);
  ASSERT_TRUE(FillKeyStartLoc(batch_, absl::MakeSpan(key_start_loc)).ok());
  EXPECT_THAT(key_start_loc, ElementsAre(0, 21, 26, 26));
  EXPECT_EQ(FillKeyStartLoc(batch_, absl::MakeSpan(key_start_loc).subspan(1)).message(),
            "key_start_loc: expected at least 4, got 3");
  seq_lens_ = {INT32_MAX, 1, 0};
  EXPECT_EQ(FillKeyStartLoc(batch_, absl::MakeSpan(key_start_loc)).message(),
            "seq_lens: expected a total of at most 2147483647 for key_start_loc, got 2147483648");
}

}  // namespace
}  // namespace reprise
