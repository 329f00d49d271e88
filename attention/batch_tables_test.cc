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

}  // namespace
}  // namespace reprise
