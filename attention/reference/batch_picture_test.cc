#include "reprise/attention/reference/batch_picture.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "reprise/attention/testing/visible_set.h"

namespace reprise {
namespace {

TEST(BatchPictureTest, DrawsQueriesAsLinesAndKeysAsColumns) {
  const int32_t loc[] = {0, 2, 2, 3};
  const int32_t seq_lens[] = {6, 3, 0};
  const int32_t table[] = {7, 2, 9, 9, 9, 9};
  const PagedBatch batch = {.query_start_loc = loc,
                            .seq_lens = seq_lens,
                            .block_table = table,
                            .block_table_stride = 2,
                            .num_rows = 3,
                            .num_tokens = 3,
                            .num_tables = 3,
                            .max_blocks = 2};
  EXPECT_EQ(DrawBatch(batch, PlainLayer(), {.block_size = 4}),
            "row 0: 2 queries over 6 keys of table row 0, blocks 7 2\n"
            "  token  pos | 0    4\n"
            "      0    4 | #### #.\n"
            "      1    5 | #### ##\n"
            "row 2: 1 query that sees no key\n");
}

TEST(BatchPictureTest, AlignsKeysThatStartWithinABlock) {
  const int32_t loc[] = {0, 1};
  const int32_t seq_lens[] = {4};
  const int32_t key_start[] = {3};
  const int32_t table[] = {5, 6};
  const PagedBatch batch = {.query_start_loc = loc,
                            .seq_lens = seq_lens,
                            .key_start = key_start,
                            .block_table = table,
                            .block_table_stride = 2,
                            .num_rows = 1,
                            .num_tokens = 1,
                            .num_tables = 1,
                            .max_blocks = 2};
  EXPECT_EQ(DrawBatch(batch, PlainLayer(), {.block_size = 4}),
            "row 0: 1 query over 4 keys of table row 0 from 3, blocks 5 6\n"
            "  token  pos | 3 4\n"
            "      0    6 | # ###\n");
}

TEST(BatchPictureTest, DrawsUnreadEntriesAsDashes) {
  const int32_t loc[] = {0, 1};
  const int32_t seq_lens[] = {6};
  const int32_t table[] = {-12345, 8, 3};
  const PagedBatch batch = {.query_start_loc = loc,
                            .seq_lens = seq_lens,
                            .block_table = table,
                            .block_table_stride = 3,
                            .num_rows = 1,
                            .num_tokens = 1,
                            .num_tables = 1,
                            .max_blocks = 3};
  AttentionParams layer = PlainLayer();
  layer.window_left = 2;
  EXPECT_EQ(DrawBatch(batch, layer, {.block_size = 2}),
            "row 0: 1 query over 6 keys of table row 0, blocks - 8 3\n"
            "  token  pos | 0  2  4\n"
            "      0    5 | .. .# ##\n");
}

TEST(BatchPictureTest, DrawsKeysOfATreeAsPositions) {
  // Three keys in the cache, then a root with two children. Both children have position 4.
  const int32_t loc[] = {0, 3};
  const int32_t seq_lens[] = {6};
  const int32_t positions[] = {3, 4, 4};
  const int32_t tail_len[] = {3};
  const uint64_t tail_mask[] = {0b001, 0b011, 0b101};
  const int32_t table[] = {1};
  const PagedBatch batch = {.query_start_loc = loc,
                            .seq_lens = seq_lens,
                            .block_table = table,
                            .block_table_stride = 1,
                            .query_positions = positions,
                            .tail_len = tail_len,
                            .tail_mask = tail_mask,
                            .num_rows = 1,
                            .num_tokens = 3,
                            .num_tables = 1,
                            .max_blocks = 1};
  EXPECT_EQ(DrawBatch(batch, PlainLayer(), {.block_size = 8}),
            "row 0: 3 queries over 6 keys of table row 0, blocks 1\n"
            "  token  pos | 0\n"
            "      0    3 | ###3..\n"
            "      1    4 | ###34.\n"
            "      2    4 | ###3.4\n");
}

TEST(BatchPictureTest, DrawsOnlyTheLastKeysOfLongRows) {
  const int32_t loc[] = {0, 1};
  const int32_t seq_lens[] = {10};
  const int32_t table[] = {1, 2, 3};
  const PagedBatch batch = {.query_start_loc = loc,
                            .seq_lens = seq_lens,
                            .block_table = table,
                            .block_table_stride = 3,
                            .num_rows = 1,
                            .num_tokens = 1,
                            .num_tables = 1,
                            .max_blocks = 3};
  EXPECT_EQ(DrawBatch(batch, PlainLayer(), {.block_size = 4, .max_columns = 3}),
            "row 0: 1 query over 10 keys of table row 0, blocks 1 2 3\n"
            "  token  pos |  7 8\n"
            "      0    9 | <# ##\n");
}

TEST(BatchPictureTest, ContiguousKeysHaveNoBlocks) {
  const int32_t loc[] = {0, 2, 3};
  const int32_t keys[] = {0, 2, 9};
  const RaggedBatch batch = {.query_start_loc = loc,
                             .key_start_loc = keys,
                             .causal = false,
                             .num_rows = 2,
                             .num_tokens = 3,
                             .num_keys = 9};
  EXPECT_EQ(DrawBatch(batch, PlainLayer(), {}),
            "row 0: 2 queries over 2 keys, rows 0 to 1 of k\n"
            "  token  pos | 0\n"
            "      0    0 | ##\n"
            "      1    1 | ##\n"
            "row 1: 1 query over 7 keys, rows 2 to 8 of k\n"
            "  token  pos | 0    5\n"
            "      2    6 | #######\n");
}

}  // namespace
}  // namespace reprise
