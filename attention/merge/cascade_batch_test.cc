#include "attention/merge/cascade_batch.h"

#include <algorithm>
#include <string>
#include <vector>

#include "attention/merge/common_prefix.h"
#include "attention/reference/visibility.h"
#include "attention/testing/prefix_generator.h"
#include "attention/testing/random.h"
#include "attention/testing/visible_set.h"
#include "base/testing/allocation_counter.h"
#include "base/testing/builder_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

using Memory = BuilderMemory<CascadeBatchArgs>;

// The example of the header: 40 and 34 keys, blocks of 16, one query each; a padded row.
class TwoRows : public ::testing::Test {
 protected:
  TwoRows() {
    args.batch = {.query_start_loc = query_start_loc,
                  .seq_lens = seq_lens,
                  .table_row = table_row,
                  .block_table = entries,
                  .block_table_stride = 3,
                  .common_prefix_len = &prefix,
                  .num_rows = 3,
                  .num_tokens = 2,
                  .num_tables = 2,
                  .max_blocks = 3};
    args.block_size = 16;
    args.prefix_query_start_loc = prefix_query_start_loc;
    args.prefix_seq_lens = &prefix_seq_len;
    args.prefix_table_row = &prefix_table_row;
    args.prefix_key_start = &prefix_key_start;
    args.suffix_seq_lens = suffix_seq_lens;
    args.suffix_key_start = suffix_key_start;
  }

  int32_t query_start_loc[4] = {0, 1, 2, 2};
  int32_t seq_lens[3] = {40, 34, 0};
  int32_t table_row[3] = {1, 0, 0};
  int32_t entries[6] = {7, 2, 9, 7, 2, 4};
  int32_t prefix = 32;
  int32_t prefix_query_start_loc[2], prefix_seq_len, prefix_table_row, prefix_key_start;
  int32_t suffix_seq_lens[3], suffix_key_start[3];
  CascadeBatchArgs args;
};

TEST_F(TwoRows, ThePrefixIsARowOfAllQueriesAndTheRestIsEachRowsOwn) {
  ASSERT_TRUE(CheckCascadeBatch(args).ok());
  CascadeBatchOnHost(args);
  EXPECT_THAT(prefix_query_start_loc, ElementsAre(0, 2));
  EXPECT_EQ(prefix_seq_len, 32);
  EXPECT_EQ(prefix_table_row, 1);
  EXPECT_THAT(suffix_seq_lens, ElementsAre(8, 2, 0));
  EXPECT_THAT(suffix_key_start, ElementsAre(32, 32, 0));
  EXPECT_FALSE(PrefixBatchOf(args).causal);
  EXPECT_TRUE(SuffixBatchOf(args).causal);
}

TEST_F(TwoRows, WithoutAPrefixTheSuffixIsTheBatch) {
  for (int32_t none : {0, -5, 48}) {
    prefix = none;
    CascadeBatchOnHost(args);
    EXPECT_THAT(prefix_query_start_loc, ElementsAre(0, 0)) << none;
    EXPECT_EQ(prefix_seq_len, 0);
    EXPECT_THAT(suffix_seq_lens, ElementsAre(40, 34, 0));
    EXPECT_THAT(suffix_key_start, ElementsAre(0, 0, 0));
  }
}

TEST_F(TwoRows, QueriesWithoutKeysSeeNoPrefixEither) {
  query_start_loc[3] = 5;  // row 2: 3 queries, no keys
  CascadeBatchOnHost(args);
  EXPECT_EQ(prefix_seq_len, 0);
  EXPECT_THAT(suffix_seq_lens, ElementsAre(40, 34, 0));
}

TEST_F(TwoRows, BadArgumentsAreRefusedWithNames) {
  args.block_size = 0;
  EXPECT_EQ(CheckCascadeBatch(args).message(), "block_size: expected at least 1, got 0");
  args.block_size = 16;
  args.batch.key_positions.world = 2;
  EXPECT_EQ(CheckCascadeBatch(args).message(), "key_positions.world: expected 1 to 1, got 2");
  args.batch.key_positions.world = 1;
  args.batch.common_prefix_len = nullptr;
  EXPECT_EQ(CheckCascadeBatch(args).message(), "common_prefix_len: expected an array, got none");
}

TEST(CascadeBatchTest, PrefixAndSuffixTogetherShowWhatTheFlatBatchShows) {
  int num_cut = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    PrefixShape shape = DrawPrefixShape(random);
    shape.max_blocks = std::min(shape.max_blocks, 300 / shape.block_size + 1);
    Memory memory([&](ArrayCarver& carver) { return CarveCascade(shape, carver); });
    CascadeBatchArgs& args = memory.args();
    DrawCascade(random, shape, 0, args);
    // Positions by definition: windows need them in the row of all queries.
    std::vector<int32_t> positions(args.batch.query_start_loc[shape.num_rows] + 1);
    for (int r = 0; r < shape.num_rows; ++r) {
      const BatchRow row = RowOf(args.batch, r);
      for (int i = 0; i < row.query_len; ++i) {
        positions[row.first_token + i] = static_cast<int32_t>(QueryPosition(row, i));
      }
    }
    args.batch.query_positions = positions.data();
    AttentionParams layer = PlainLayer();
    if (random.OneIn(3)) layer.window_left = random.Int(0, 100);
    const AllocationCounter allocations;
    CascadeBatchOnHost(args);
    ASSERT_EQ(allocations.count(), 0);
    num_cut += *args.prefix_seq_lens > 0;
    VisiblePairs seen = VisibleSet(layer, PrefixBatchOf(args), shape.block_size);
    const VisiblePairs suffix = VisibleSet(layer, SuffixBatchOf(args), shape.block_size);
    seen.insert(seen.end(), suffix.begin(), suffix.end());
    std::ranges::sort(seen);
    ASSERT_EQ(DifferenceOf(seen, VisibleSet(layer, args.batch, shape.block_size)), "")
        << "seed " << seed;
  }
  EXPECT_GT(num_cut, 5000);
}

}  // namespace
}  // namespace reprise
