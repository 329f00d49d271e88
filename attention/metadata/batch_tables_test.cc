#include "reprise/attention/metadata/batch_tables.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/tables/convert_tables.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The tables of a batch's own rows, in both forms at once.
struct Tables {
  Tables(int num_rows, int max_blocks, int max_indices)
      : entries(static_cast<size_t>(num_rows) * max_blocks, 77),
        seq_lens(num_rows, 77),
        block_indptr(num_rows + 1, 77),
        block_indices(max_indices, 77),
        last_block_len(num_rows, 77),
        key_start_loc(num_rows + 1, 77),
        max_blocks(max_blocks) {}

  absl::Status Convert(const PagedBatch& batch, const TableSelection& selection = {}) {
    const int num_rows = static_cast<int>(seq_lens.size());
    ConvertTablesArgs args = ConversionOf(batch, 4);
    args.selection = selection;
    args.out = {.table = {.entries = entries.data(),
                          .row_stride = max_blocks,
                          .num_tables = num_rows,
                          .max_blocks = max_blocks,
                          .block_size = 4},
                .seq_lens = seq_lens.data(),
                .packed = {.block_indptr = block_indptr.data(),
                           .block_indices = block_indices.data(),
                           .last_block_len = last_block_len.data(),
                           .num_rows = num_rows,
                           .max_indices = static_cast<int>(block_indices.size()),
                           .block_size = 4},
                .key_start_loc = key_start_loc.data()};
    return ConvertTables(args);
  }

  std::vector<int32_t> entries, seq_lens, block_indptr, block_indices, last_block_len,
      key_start_loc;
  int max_blocks;
};

// Rows of 6, 0 and 8 tokens at block_size 4, in table rows 2, -, 0; 9s are look-ahead blocks.
class BatchTablesTest : public ::testing::Test {
 protected:
  std::vector<int32_t> entries_ = {5, 3, 9, 9, 9, 9, 7, 2, 9};
  std::vector<int32_t> seq_lens_ = {6, 0, 8};
  std::vector<int32_t> table_row_ = {2, 0, 0};
  PagedBatch batch_ = {.seq_lens = seq_lens_.data(),
                       .table_row = table_row_.data(),
                       .block_table = entries_.data(),
                       .block_table_stride = 3,
                       .num_rows = 3,
                       .num_tables = 3,
                       .max_blocks = 3};
};

TEST_F(BatchTablesTest, RowsHoldTheirBlocksAndNoLookAheadBlocks) {
  Tables tables(3, 3, 5);
  const absl::Status status = tables.Convert(batch_);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(tables.entries, ElementsAre(7, 2, 0, 0, 0, 0, 5, 3, 0));
  EXPECT_THAT(tables.seq_lens, ElementsAre(6, 0, 8));
  EXPECT_THAT(tables.block_indptr, ElementsAre(0, 2, 2, 4));
  EXPECT_THAT(tables.block_indices, ElementsAre(7, 2, 5, 3, 77));
  EXPECT_THAT(tables.last_block_len, ElementsAre(2, 0, 4));
  EXPECT_THAT(tables.key_start_loc, ElementsAre(0, 6, 6, 14));
}

TEST_F(BatchTablesTest, VirtualRowsBeginAtTheirKeyStart) {
  const std::vector<int32_t> key_start = {4, 0, 0};
  seq_lens_ = {2, 0, 8};
  batch_.key_start = key_start.data();
  Tables tables(3, 3, 5);
  const absl::Status status = tables.Convert(batch_);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(tables.entries, ElementsAre(2, 0, 0, 0, 0, 0, 5, 3, 0));
}

TEST_F(BatchTablesTest, OutputsTooSmallAreNamedAndNothingIsWritten) {
  Tables narrow(3, 1, 5);
  EXPECT_THAT(std::string(narrow.Convert(batch_).message()),
              HasSubstr("rows[0]: its tokens pass the capacity of the result: seq_len 6, table row "
                        "2 of 3 with room for 12; room for 4 in out.table"));
  EXPECT_THAT(narrow.entries, Each(77));
  Tables few(2, 3, 5);
  EXPECT_EQ(few.Convert(batch_).message(), "out.table.num_tables: expected at least 3, got 2");
  // Rows that share their blocks may take more indices than there are blocks.
  Tables small(3, 3, 3);
  EXPECT_THAT(std::string(small.Convert(batch_).message()),
              HasSubstr("rows[2]: its tokens pass the capacity of the result: seq_len 8, table row "
                        "0 of 3 with room for 12; room for 12 in out.table; 2 of 3 "
                        "out.packed.block_indices used"));
  EXPECT_THAT(small.entries, Each(77));
  EXPECT_THAT(small.block_indptr, Each(77));
}

TEST_F(BatchTablesTest, AnIdleBatchPacksToOneZero) {
  batch_.num_rows = 0;
  Tables tables(0, 3, 0);
  const absl::Status status = tables.Convert(batch_);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(tables.block_indptr, ElementsAre(0));
  EXPECT_THAT(tables.key_start_loc, ElementsAre(0));
}

// A row of 3 queries over 21 keys (positions 18 .. 20), a pure prefill of 5, and a padded row.
class SelectedBatchTablesTest : public ::testing::Test {
 protected:
  std::vector<int32_t> entries_ = {11, 12, 13, 14, 15, 16, 99, 21, 22, 99, 99, 99, 99, 99};
  std::vector<int32_t> loc_ = {0, 3, 8, 8};
  std::vector<int32_t> seq_lens_ = {21, 5, 0};
  std::vector<int32_t> table_row_ = {0, 1, 0};
  PagedBatch batch_ = {.query_start_loc = loc_.data(),
                       .seq_lens = seq_lens_.data(),
                       .table_row = table_row_.data(),
                       .block_table = entries_.data(),
                       .block_table_stride = 7,
                       .num_rows = 3,
                       .num_tables = 2,
                       .max_blocks = 7};
  Tables tables_{3, 6, 8};
};

TEST_F(SelectedBatchTablesTest, AllBlocksOfTheSequences) {
  ASSERT_TRUE(tables_.Convert(batch_).ok());
  EXPECT_THAT(tables_.block_indptr, ElementsAre(0, 6, 8, 8));
  EXPECT_THAT(tables_.block_indices, ElementsAre(11, 12, 13, 14, 15, 16, 21, 22));
  EXPECT_THAT(tables_.last_block_len, ElementsAre(1, 1, 0));
  EXPECT_THAT(tables_.key_start_loc, ElementsAre(0, 21, 26, 26));
}

TEST_F(SelectedBatchTablesTest, BlocksCachedBeforeTheStepAreNoneInAPurePrefill) {
  ASSERT_TRUE(tables_.Convert(batch_, {.keys = TableKeys::kComputed}).ok());
  EXPECT_THAT(tables_.block_indptr, ElementsAre(0, 5, 5, 5));
  EXPECT_THAT(tables_.last_block_len, ElementsAre(2, 0, 0));
  EXPECT_THAT(tables_.seq_lens, ElementsAre(18, 0, 0));
}

TEST_F(SelectedBatchTablesTest, AWindowTakesTheLastBlocks) {
  Tables tables(3, 3, 8);
  ASSERT_TRUE(tables.Convert(batch_, {.keys = TableKeys::kWindow, .window_left = 5}).ok());
  EXPECT_THAT(tables.block_indptr, ElementsAre(0, 3, 5, 5));
  EXPECT_THAT(absl::MakeConstSpan(tables.block_indices).subspan(0, 5),
              ElementsAre(14, 15, 16, 21, 22));
  EXPECT_THAT(tables.last_block_len, ElementsAre(1, 1, 0));
  EXPECT_THAT(tables.entries, ElementsAre(14, 15, 16, 21, 22, 0, 0, 0, 0));
  EXPECT_THAT(tables.seq_lens, ElementsAre(9, 5, 0));
  EXPECT_EQ(tables.Convert(batch_, {.keys = TableKeys::kWindow, .window_left = -1}).message(),
            "selection.window_left: expected at least 0, got -1");
}

}  // namespace
}  // namespace reprise
