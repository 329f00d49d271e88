#include "reprise/attention/batch_check.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

// Two rows of 2 queries over 5 keys and 1 over 3, block_size 2, tables of 3 blocks.
struct TwoRows {
  std::vector<int32_t> query_start_loc = {0, 2, 3};
  std::vector<int32_t> seq_lens = {5, 3};
  std::vector<int32_t> table_row = {0, 1};
  std::vector<int32_t> key_start = {0, 0};
  std::vector<int32_t> block_table = {3, 1, 2, 4, 5, -9};
  std::vector<int32_t> tail_len = {0, 0};
  std::vector<uint64_t> tail_mask = {0, 0, 0};
  std::vector<uint8_t> custom_mask = {0, 0, 0, 0};
  std::vector<int64_t> custom_mask_offset = {-1, -1};
  AttentionParams layer = {.num_q_heads = 1, .num_kv_heads = 1, .head_dim_qk = 8, .head_dim_v = 8};
  KvLayer kv = {.num_blocks = 6, .block_size = 2};

  absl::Status Check() const {
    const PagedBatch batch = {.query_start_loc = query_start_loc.data(),
                              .seq_lens = seq_lens.data(),
                              .table_row = table_row.data(),
                              .key_start = key_start.data(),
                              .block_table = block_table.data(),
                              .block_table_stride = 3,
                              .tail_len = tail_len.data(),
                              .tail_mask = tail_mask.data(),
                              .custom_mask = custom_mask.data(),
                              .custom_mask_offset = custom_mask_offset.data(),
                              .num_rows = 2,
                              .num_tokens = 4,
                              .max_query_len = 3,
                              .max_seq_len = 6,
                              .num_tables = 2,
                              .max_blocks = 3,
                              .custom_mask_bytes = std::ssize(custom_mask)};
    return CheckBatchArrays(layer, batch, kv);
  }
};

template <typename Change>
std::string RefusalOf(const Change& change) {
  TwoRows rows;
  EXPECT_TRUE(rows.Check().ok()) << rows.Check();
  change(rows);
  const absl::Status status = rows.Check();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(BatchCheckTest, DescendingOrLateStartLocsAreRefused) {
  EXPECT_EQ(RefusalOf([](TwoRows& rows) {
              rows.query_start_loc = {0, 2, 1};
            }),
            "query_start_loc[2]: expected 2 to 5 (max_query_len), got 1");
  EXPECT_EQ(RefusalOf([](TwoRows& rows) {
              rows.query_start_loc = {1, 2, 3};
            }),
            "query_start_loc[0]: expected 0 to 0 (the start), got 1");
  EXPECT_EQ(RefusalOf([](TwoRows& rows) {
              rows.query_start_loc = {0, 2, 5};
            }),
            "query_start_loc[2]: expected 0 to 4 (num_tokens), got 5");
}

TEST(BatchCheckTest, LengthsBeyondTheCapacityOrTheTableAreRefused) {
  EXPECT_EQ(RefusalOf([](TwoRows& rows) { rows.seq_lens[1] = 7; }),
            "seq_lens[1]: expected 0 to 6 (max_seq_len), got 7");
  EXPECT_EQ(RefusalOf([](TwoRows& rows) { rows.seq_lens[0] = -1; }),
            "seq_lens[0]: expected 0 to 6 (max_seq_len), got -1");
  // Keys 4 .. 6 of a table of 6.
  EXPECT_EQ(RefusalOf([](TwoRows& rows) { rows.key_start[1] = 4; }),
            "key_start[1]: expected 0 to 3 (max_blocks * block_size - seq_len), got 4");
}

TEST(BatchCheckTest, RowsOutsideTheTablesAreRefused) {
  EXPECT_EQ(RefusalOf([](TwoRows& rows) { rows.table_row[0] = 2; }),
            "table_row[0]: expected 0 to 1 (num_tables - 1), got 2");
}

TEST(BatchCheckTest, BlocksOutsideTheCacheAreRefusedWhereTheyAreRead) {
  EXPECT_EQ(RefusalOf([](TwoRows& rows) { rows.block_table[1] = 6; }),
            "block_table[0][1]: expected 0 to 5 (a block of the cache), got 6");
  TwoRows rows;  // a window of 1 token: queries at 3 and 4, keys from 3 on
  rows.layer.window_left = 0;
  rows.block_table[0] = std::numeric_limits<int32_t>::min();
  EXPECT_TRUE(rows.Check().ok());
}

TEST(BatchCheckTest, TailsLongerThanTheRowAreRefused) {
  EXPECT_EQ(RefusalOf([](TwoRows& rows) { rows.tail_len[1] = 4; }),
            "tail_len[1]: expected 0 to 3 (64 and seq_len), got 4");
}

TEST(BatchCheckTest, MasksBeyondTheirArrayAreRefused) {
  // Row 0 has 2 queries and 5 keys: 10 bits.
  EXPECT_EQ(RefusalOf([](TwoRows& rows) { rows.custom_mask_offset[0] = 3; }),
            "custom_mask_offset[0]: expected 0 to 2 (custom_mask_bytes less those of the row, or "
            "-1), got 3");
  EXPECT_THAT(RefusalOf([](TwoRows& rows) { rows.custom_mask_offset[1] = -2; }),
              HasSubstr("custom_mask_offset[1]"));
  TwoRows rows;
  rows.custom_mask_offset = {2, 3};
  EXPECT_TRUE(rows.Check().ok());
}

TEST(BatchCheckTest, RowsWithoutKeysOrQueriesMayHoldGarbage) {
  TwoRows rows;
  rows.seq_lens[1] = 0;
  rows.custom_mask_offset[1] = -999;
  rows.table_row[1] = rows.key_start[1] = rows.tail_len[1] = -77;
  EXPECT_TRUE(rows.Check().ok());
  rows.seq_lens[1] = 3;
  rows.query_start_loc = {0, 2, 2};
  EXPECT_TRUE(rows.Check().ok());
}

TEST(BatchCheckTest, EveryGeneratedBatchPassesWithoutAnAllocation) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const PagedFixture fixture = MakePagedFixture({.seed = seed});
    SCOPED_TRACE(fixture.description);
    const AttentionParams layer = fixture.Layer(OnHost);
    const PagedBatch batch = fixture.Batch(OnHost);
    const KvLayer kv = fixture.Kv(OnHost);
    const AllocationCounter allocations;
    const absl::Status status = CheckBatchArrays(layer, batch, kv);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(status.ok()) << status;
  }
}

TEST(BatchCheckTest, RaggedPrefixSumsAreChecked) {
  const RaggedFixture fixture = MakeRaggedFixture({.seed = 3});
  RaggedBatch batch = fixture.Batch(OnHost);
  EXPECT_TRUE(CheckBatchArrays(batch).ok());
  batch.num_keys = 0;
  EXPECT_THAT(std::string(CheckBatchArrays(batch).message()), HasSubstr("(num_keys)"));
}

TEST(BatchCheckTest, MasksOfRaggedRowsAreChecked) {
  const std::vector<int32_t> loc = {0, 3, 3};
  const std::vector<uint8_t> mask(2);
  std::vector<int64_t> offsets = {0, -999};  // row 1 has no keys
  const RaggedBatch batch = {.query_start_loc = loc.data(),
                             .key_start_loc = loc.data(),
                             .custom_mask = mask.data(),
                             .custom_mask_offset = offsets.data(),
                             .num_rows = 2,
                             .num_tokens = 3,
                             .num_keys = 3,
                             .max_query_len = 3,
                             .max_seq_len = 3,
                             .custom_mask_bytes = 2};
  EXPECT_TRUE(CheckBatchArrays(batch).ok());
  offsets[0] = 1;
  EXPECT_THAT(std::string(CheckBatchArrays(batch).message()), HasSubstr("custom_mask_offset[0]"));
}

}  // namespace
}  // namespace reprise
