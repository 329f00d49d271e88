#include "reprise/attention/metadata/batch_tables.h"

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/testing/schedule_generator.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/cache/tables/convert_tables.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// The padded and the packed table of a batch's rows, from one conversion.
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

// Rows with 6, 0 and 8 tokens and block_size 4, in table rows 2, -, 0. Entry 9 is a look-ahead
// block.
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

TEST_F(BatchTablesTest, RowsDoNotContainLookAheadBlocks) {
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

TEST_F(BatchTablesTest, RejectsSmallOutputsWithoutWriting) {
  Tables narrow(3, 1, 5);
  EXPECT_THAT(std::string(narrow.Convert(batch_).message()),
              HasSubstr("rows[0]: its tokens pass the capacity of the result: seq_len 6, table row "
                        "2 of 3 with room for 12; room for 4 in out.table"));
  EXPECT_THAT(narrow.entries, Each(77));
  Tables few(2, 3, 5);
  EXPECT_EQ(few.Convert(batch_).message(), "out.table.num_tables: expected at least 3, got 2");
  // The rows need 4 indices.
  Tables small(3, 3, 3);
  EXPECT_THAT(std::string(small.Convert(batch_).message()),
              HasSubstr("rows[2]: its tokens pass the capacity of the result: seq_len 8, table row "
                        "0 of 3 with room for 12; room for 12 in out.table; 2 of 3 "
                        "out.packed.block_indices used"));
  EXPECT_THAT(small.entries, Each(77));
  EXPECT_THAT(small.block_indptr, Each(77));
}

TEST_F(BatchTablesTest, EmptyBatchPacksToOneZero) {
  batch_.num_rows = 0;
  Tables tables(0, 3, 0);
  const absl::Status status = tables.Convert(batch_);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(tables.block_indptr, ElementsAre(0));
  EXPECT_THAT(tables.key_start_loc, ElementsAre(0));
}

// A row of 3 queries over 21 keys (positions 18 .. 20), a pure prefill of 5 tokens, and a padded
// row.
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

TEST_F(SelectedBatchTablesTest, SelectsAllBlocksByDefault) {
  ASSERT_TRUE(tables_.Convert(batch_).ok());
  EXPECT_THAT(tables_.block_indptr, ElementsAre(0, 6, 8, 8));
  EXPECT_THAT(tables_.block_indices, ElementsAre(11, 12, 13, 14, 15, 16, 21, 22));
  EXPECT_THAT(tables_.last_block_len, ElementsAre(1, 1, 0));
  EXPECT_THAT(tables_.key_start_loc, ElementsAre(0, 21, 26, 26));
}

TEST_F(SelectedBatchTablesTest, PurePrefillHasNoBlocksCachedBeforeTheStep) {
  ASSERT_TRUE(tables_.Convert(batch_, {.keys = TableKeys::kComputed}).ok());
  EXPECT_THAT(tables_.block_indptr, ElementsAre(0, 5, 5, 5));
  EXPECT_THAT(tables_.last_block_len, ElementsAre(2, 0, 0));
  EXPECT_THAT(tables_.seq_lens, ElementsAre(18, 0, 0));
}

TEST_F(SelectedBatchTablesTest, WindowSelectsTheLastBlocks) {
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

// Memory for virtual rows and their tables, filled with invalid values.
class LocalMemory {
 public:
  LocalMemory(int max_rows, int width, int block_size)
      : max_rows_(max_rows),
        ints_(6 * max_rows + 1, -77),
        entries_(static_cast<size_t>(max_rows) * width, -77),
        out_{.table = {.entries = entries_.data(),
                       .row_stride = width,
                       .num_tables = max_rows,
                       .max_blocks = width,
                       .block_size = block_size},
             .seq_lens = ints_.data() + 4 * max_rows + 1,
             .row_faults = ints_.data() + 5 * max_rows + 1,
             .num_faults = &num_faults_} {}

  LocalBatchBuffers rows() {
    return {.query_start_loc = ints_.data(),
            .seq_lens = ints_.data() + max_rows_ + 1,
            .table_row = ints_.data() + 2 * max_rows_ + 1,
            .key_start = ints_.data() + 3 * max_rows_ + 1,
            .max_rows = max_rows_};
  }
  ConvertTablesArgs Conversion(const PagedBatch& local) {
    ConvertTablesArgs args = ConversionOf(local, out_.table.block_size);
    args.out = out_;
    return args;
  }
  const ConvertTablesOutputs& out() const { return out_; }
  const std::vector<int32_t>& entries() const { return entries_; }
  int32_t num_faults() const { return num_faults_; }

 private:
  int max_rows_;
  int32_t num_faults_ = -77;
  std::vector<int32_t> ints_;
  std::vector<int32_t> entries_;
  ConvertTablesOutputs out_;
};

// The example of the local attention virtual batches in SGLang and vLLM. The tables are {0 .. 9},
// {10 .. 19} and {20 .. 29}, with block_size 2.
class LocalTablesTest : public ::testing::Test {
 protected:
  LocalTablesTest() { std::iota(table_.begin(), table_.end(), 0); }

  PagedBatch Local() {
    return *BuildLocalVirtualBatch({.batch = {.query_start_loc = loc_,
                                              .seq_lens = lens_,
                                              .block_table = table_.data(),
                                              .block_table_stride = 10,
                                              .num_rows = 3,
                                              .num_tokens = 19,
                                              .max_query_len = 10,
                                              .max_seq_len = 17,
                                              .num_tables = 3,
                                              .max_blocks = 10},
                                    .chunk_size = 4,
                                    .buffers = memory_.rows()});
  }

  const int32_t loc_[4] = {0, 4, 14, 19};
  int32_t lens_[3] = {6, 17, 9};
  std::vector<int32_t> table_ = std::vector<int32_t>(30);
  LocalMemory memory_{/*max_rows=*/10, /*width=*/2, /*block_size=*/2};
};

TEST_F(LocalTablesTest, MatchesTheWorkedExample) {
  const PagedBatch local = Local();
  const absl::Status status = ConvertTables(memory_.Conversion(local));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(memory_.entries(), ElementsAreArray({0,  1, 2,  0,  12, 13, 14, 15, 16, 17,  //
                                                   18, 0, 22, 23, 24, 0,  0,  0,  0,  0}));
  const PagedBatch classic = ConvertedBatch(local, memory_.out());
  EXPECT_EQ(classic.num_tables, 10);
  EXPECT_EQ(classic.max_blocks, 2);
  EXPECT_EQ(classic.block_table_stride, 2);
  EXPECT_EQ(classic.table_row, nullptr);
  EXPECT_EQ(classic.key_start, nullptr);
  EXPECT_THAT(absl::MakeConstSpan(classic.seq_lens, 10), ElementsAre(4, 2, 4, 4, 4, 1, 4, 1, 0, 0));
  EXPECT_THAT(absl::MakeConstSpan(classic.query_start_loc, 11),
              ElementsAre(0, 2, 4, 5, 9, 13, 14, 18, 19, 19, 19));
}

TEST_F(LocalTablesTest, ColumnsBeyondTheTableAreNotRead) {
  PagedBatch local = Local();
  local.max_blocks = 9;  // 18 tokens: the chunk that begins at 16 has only one block
  table_[19] = -5;       // the entry beyond max_blocks
  ASSERT_TRUE(ConvertTables(memory_.Conversion(local)).ok());
  EXPECT_THAT(absl::MakeConstSpan(memory_.entries()).subspan(10, 2), ElementsAre(18, 0));
}

TEST_F(LocalTablesTest, RejectsRowsThatCannotBeConverted) {
  const PagedBatch local = Local();
  const auto refusal = [&](const ConvertTablesArgs& args) {
    const absl::Status status = ConvertTables(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(memory_.entries(), Each(-77));
    return std::string(status.message());
  };
  PagedBatch narrow = local;
  narrow.max_blocks = 8;  // 16 tokens
  EXPECT_THAT(refusal(memory_.Conversion(narrow)),
              HasSubstr("rows[5]: a length or a count is negative or too large: seq_len 1 from 16, "
                        "table row 1 of 3 with room for 16"));
  PagedBatch few = local;
  few.num_tables = 2;
  EXPECT_THAT(refusal(memory_.Conversion(few)), HasSubstr("table row 2 of 2"));
  // Chunks of 4 tokens do not begin at block boundaries if block_size is 3.
  ConvertTablesArgs split = memory_.Conversion(local);
  split.table.block_size = split.out.table.block_size = 3;
  EXPECT_THAT(refusal(split), HasSubstr("rows[1]: "));
  ConvertTablesArgs small = memory_.Conversion(local);
  small.out.table.num_tables = 9;
  EXPECT_EQ(refusal(small), "out.table.num_tables: expected at least 10, got 9");
}

TEST_F(LocalTablesTest, RowsThatCannotBeConvertedBecomeEmptyWithAFault) {
  int32_t seq_lens[] = {2, 4, -1, 2, 2, 0}, table_row[] = {1, 0, 0, 3, 0, 9},
          key_start[] = {4, 18, 0, 0, 1, -5};
  const PagedBatch local = {.seq_lens = seq_lens,
                            .table_row = table_row,
                            .key_start = key_start,
                            .block_table = table_.data(),
                            .block_table_stride = 10,
                            .num_rows = 6,
                            .num_tables = 3,
                            .max_blocks = 10};
  ConvertTablesOnHost(memory_.Conversion(local));
  EXPECT_THAT(absl::MakeConstSpan(memory_.out().seq_lens, 6), ElementsAre(2, 0, 0, 0, 0, 0));
  EXPECT_THAT(
      absl::MakeConstSpan(memory_.out().row_faults, 6),
      ElementsAre(0, static_cast<int>(RowFault::kLength), static_cast<int>(RowFault::kLength),
                  static_cast<int>(RowFault::kTableRow), static_cast<int>(RowFault::kNoRun), 0));
  EXPECT_EQ(memory_.num_faults(), 4);
  EXPECT_THAT(absl::MakeConstSpan(memory_.entries()).subspan(0, 12),
              ElementsAre(12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST_F(LocalTablesTest, KeysAndDistancesMatchTheDefinition) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const Schedule schedule = DrawSchedule({.max_block_size = 8}, random);
    const int width = random.Int(1, 8);
    const int chunk = schedule.block_size * width;
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ", chunk " << chunk << ", " << schedule.Description());
    const PaddedSize padded = {.num_rows = schedule.num_rows() + random.Int(0, 2),
                               .num_tokens = schedule.num_tokens() + random.Int(0, 5)};
    const ScheduledBatchMemory plain(schedule, padded);
    LocalMemory memory(MaxLocalRows(padded.num_rows, padded.num_tokens, chunk), width,
                       schedule.block_size);
    const absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(
        {.batch = plain.built.batch, .chunk_size = chunk, .buffers = memory.rows()});
    ASSERT_TRUE(local.ok()) << local.status();
    const absl::Status status = ConvertTables(memory.Conversion(*local));
    ASSERT_TRUE(status.ok()) << status;
    VisiblePairs expected = SetByDefinition(
        schedule, [&](int64_t p, int64_t key) { return key <= p && key / chunk == p / chunk; });
    for (VisiblePair& pair : expected) {  // positions are relative to the chunk's start
      pair.key_position %= chunk;
      pair.query_position %= chunk;
    }
    ASSERT_EQ(DifferenceOf(VisibleSet(PlainLayer(), ConvertedBatch(*local, memory.out()),
                                      schedule.block_size),
                           expected),
              "");
  }
}

}  // namespace
}  // namespace reprise
