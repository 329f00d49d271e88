#include "reprise/attention/metadata/local_block_table.h"

#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/testing/schedule_generator.h"
#include "reprise/attention/testing/visible_set.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Memory for virtual rows and their tables, poisoned.
class Memory {
 public:
  Memory(int max_rows, int width)
      : max_rows_(max_rows),
        width_(width),
        ints_(6 * max_rows + 1, -77),
        entries_(static_cast<size_t>(max_rows) * width, -77) {}

  LocalBatchBuffers rows() {
    return {.query_start_loc = ints_.data(),
            .seq_lens = ints_.data() + max_rows_ + 1,
            .table_row = ints_.data() + 2 * max_rows_ + 1,
            .key_start = ints_.data() + 3 * max_rows_ + 1,
            .max_rows = max_rows_};
  }
  LocalBlockTableArgs args(const PagedBatch& local, int chunk_size, int block_size) {
    return {.local = local,
            .chunk_size = chunk_size,
            .table = {.entries = entries_.data(),
                      .row_stride = width_,
                      .num_tables = max_rows_,
                      .max_blocks = width_,
                      .block_size = block_size},
            .seq_lens = ints_.data() + 4 * max_rows_ + 1,
            .row_faults = ints_.data() + 5 * max_rows_ + 1,
            .num_faults = &num_faults_};
  }
  const std::vector<int32_t>& entries() const { return entries_; }
  int32_t num_faults() const { return num_faults_; }

 private:
  int max_rows_;
  int width_;
  int32_t num_faults_ = -77;
  std::vector<int32_t> ints_;
  std::vector<int32_t> entries_;
};

// The example of SGLang's and vLLM's local attention virtual batches, table and all.
class LocalBlockTableTest : public ::testing::Test {
 protected:
  LocalBlockTableTest() : memory_(10, 2) { std::iota(table_.begin(), table_.end(), 0); }

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
  Memory memory_;
};

TEST_F(LocalBlockTableTest, TheWorkedExampleComesOutLiterally) {
  const absl::StatusOr<PagedBatch> classic =
      BuildLocalBlockTable(memory_.args(Local(), 4, /*block_size=*/2));
  ASSERT_TRUE(classic.ok()) << classic.status();
  EXPECT_THAT(memory_.entries(), ElementsAreArray({0,  1,  2,  3,  12, 13, 14, 15, 16, 17,  //
                                                   18, 19, 22, 23, 24, 25, 0,  0,  0,  0}));
  EXPECT_EQ(classic->num_tables, 10);
  EXPECT_EQ(classic->max_blocks, 2);
  EXPECT_EQ(classic->block_table_stride, 2);
  EXPECT_EQ(classic->table_row, nullptr);
  EXPECT_EQ(classic->key_start, nullptr);
  EXPECT_THAT(absl::MakeConstSpan(classic->seq_lens, 10),
              ElementsAre(4, 2, 4, 4, 4, 1, 4, 1, 0, 0));
  EXPECT_THAT(absl::MakeConstSpan(classic->query_start_loc, 11),
              ElementsAre(0, 2, 4, 5, 9, 13, 14, 18, 19, 19, 19));
}

TEST_F(LocalBlockTableTest, ColumnsBeyondTheTableRepeatItsLast) {
  PagedBatch local = Local();
  local.max_blocks = 9;  // 18 tokens: the chunk that begins at 16 has one block of them
  ASSERT_TRUE(BuildLocalBlockTable(memory_.args(local, 4, 2)).ok());
  EXPECT_THAT(absl::MakeConstSpan(memory_.entries()).subspan(10, 2), ElementsAre(18, 18));
}

TEST_F(LocalBlockTableTest, WhatHasNoLocalTableIsRefusedWithTheValues) {
  const PagedBatch local = Local();
  const auto refusal = [&](const LocalBlockTableArgs& args) {
    const absl::Status status = BuildLocalBlockTable(args).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(memory_.entries(), Each(-77));
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(memory_.args(local, 4, 3)),
            "chunk_size: expected a multiple of block_size (3), got 4");
  EXPECT_THAT(refusal(memory_.args(local, 0, 1)), HasSubstr("got 0"));
  EXPECT_THAT(refusal(memory_.args(local, 4, 0)), HasSubstr("block_size (0)"));
  EXPECT_EQ(refusal(memory_.args(local, 8, 2)),
            "table.max_blocks: expected 4 (chunk_size / block_size), got 2");
  PagedBatch narrow = local;
  narrow.max_blocks = 8;  // 16 tokens
  EXPECT_THAT(refusal(memory_.args(narrow, 4, 2)),
              AllOf(HasSubstr("rows[5]: a length or a count"),
                    HasSubstr("got table_row 1, key_start 16, seq_len 1")));
  PagedBatch few = local;
  few.num_tables = 2;
  EXPECT_THAT(refusal(memory_.args(few, 4, 2)), HasSubstr("expected a table_row of 0 to 1"));
  EXPECT_EQ(refusal(memory_.args({.num_rows = 1}, 4, 2)),
            "local.seq_lens: expected an array, got none");
  LocalBlockTableArgs small = memory_.args(local, 4, 2);
  small.table.num_tables = 9;
  EXPECT_EQ(refusal(small), "table.num_tables: expected at least 10, got 9");
  small = memory_.args(local, 4, 2);
  small.table.row_stride = 1;
  EXPECT_EQ(refusal(small), "table.row_stride: expected at least 2, got 1");
  small = memory_.args(local, 4, 2);
  small.seq_lens = nullptr;
  EXPECT_EQ(refusal(small), "seq_lens: expected an array, got none");
}

TEST_F(LocalBlockTableTest, RowsWithoutATableAreEmptyRowsWithAReason) {
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
  const LocalBlockTableArgs args = memory_.args(local, 4, 2);
  LocalBlockTableOnHost(args);
  EXPECT_THAT(absl::MakeConstSpan(args.seq_lens, 6), ElementsAre(2, 0, 0, 0, 0, 0));
  EXPECT_THAT(
      absl::MakeConstSpan(args.row_faults, 6),
      ElementsAre(0, static_cast<int>(RowFault::kLength), static_cast<int>(RowFault::kLength),
                  static_cast<int>(RowFault::kTableRow), static_cast<int>(RowFault::kNoRun), 0));
  EXPECT_EQ(memory_.num_faults(), 4);
  EXPECT_THAT(absl::MakeConstSpan(memory_.entries()).subspan(0, 12),
              ElementsAre(12, 13, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST_F(LocalBlockTableTest, QueriesSeeTheSameKeysAtTheSameDistances) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const Schedule schedule = DrawSchedule({.max_block_size = 8}, random);
    const int chunk = schedule.block_size * random.Int(1, 8);
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ", chunk " << chunk << ", " << schedule.Description());
    const PaddedSize padded = {.num_rows = schedule.num_rows() + random.Int(0, 2),
                               .num_tokens = schedule.num_tokens() + random.Int(0, 5)};
    const ScheduledBatchMemory plain(schedule, padded);
    Memory memory(MaxLocalRows(padded.num_rows, padded.num_tokens, chunk),
                  LocalTableWidth(chunk, schedule.block_size));
    const absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(
        {.batch = plain.built.batch, .chunk_size = chunk, .buffers = memory.rows()});
    ASSERT_TRUE(local.ok()) << local.status();
    const absl::StatusOr<PagedBatch> classic =
        BuildLocalBlockTable(memory.args(*local, chunk, schedule.block_size));
    ASSERT_TRUE(classic.ok()) << classic.status();
    VisiblePairs expected = SetByDefinition(
        schedule, [&](int64_t p, int64_t key) { return key <= p && key / chunk == p / chunk; });
    for (VisiblePair& pair : expected) {  // positions count from the chunk's start
      pair.key_position %= chunk;
      pair.query_position %= chunk;
    }
    ASSERT_EQ(DifferenceOf(VisibleSet(PlainLayer(), *classic, schedule.block_size), expected), "");
  }
}

}  // namespace
}  // namespace reprise
