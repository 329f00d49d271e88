#include "reprise/attention/merge/common_prefix.h"

#include <algorithm>
#include <climits>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/testing/host_tile_schedule.h"
#include "reprise/attention/testing/prefix_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_check.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/dtype.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {
namespace {

// Two rows with one query each, and tables with the blocks {7, 2, 9}, {7, 2, 4} and {8, 2, 9}.
// block_size is 16, and row r uses table r.
class PrefixOfTwo : public ::testing::Test {
 protected:
  PrefixOfTwo() {
    args.batch = {.query_start_loc = query_start_loc,
                  .seq_lens = seq_lens,
                  .table_row = table_row,
                  .block_table = entries,
                  .block_table_stride = 3,
                  .num_rows = 2,
                  .num_tokens = 2,
                  .num_tables = 3,
                  .max_blocks = 3};
    args.block_size = 16;
    args.common_prefix_len = &len;
  }

  int32_t query_start_loc[3] = {0, 1, 2};
  int32_t seq_lens[2] = {40, 34};
  int32_t table_row[2] = {0, 1};
  int32_t entries[9] = {7, 2, 9, 7, 2, 4, 8, 2, 9};
  int32_t len = -1;
  CommonPrefixArgs args;
};

TEST_F(PrefixOfTwo, FindsWholeBlocksBeforeTheQueries) {
  EXPECT_EQ(CommonPrefixOnHost(args), 32);
  EXPECT_EQ(len, 32);
  seq_lens[1] = 32;  // its query is token 31, the last token of the second block
  EXPECT_EQ(CommonPrefixOnHost(args), 16);
  args.batch.causal = false;  // cross attention: queries are not keys
  EXPECT_EQ(CommonPrefixOnHost(args), 32);
}

TEST_F(PrefixOfTwo, EqualBlocksAfterADifferentBlockAreNotAPrefix) {
  table_row[1] = 2;
  EXPECT_EQ(CommonPrefixOnHost(args), 0);
}

TEST_F(PrefixOfTwo, PrefixExcludesTheTree) {
  const int32_t tail_len[] = {9, 1};
  args.batch.tail_len = tail_len;
  EXPECT_EQ(CommonPrefixOnHost(args), 16);  // 40 - 9 = 31 keys
}

TEST_F(PrefixOfTwo, IgnoresRowsWithoutQueriesOrKeys) {
  table_row[1] = 2;
  seq_lens[1] = 0;
  EXPECT_EQ(CommonPrefixOnHost(args), 32);  // row 0 only
  seq_lens[0] = 0;
  EXPECT_EQ(CommonPrefixOnHost(args), 0);
  args.batch.num_rows = 0;
  EXPECT_EQ(CommonPrefixOnHost(args), 0);
}

TEST_F(PrefixOfTwo, RowsWithDifferentKeyStartsShareNothing) {
  int32_t key_start[] = {10, 10};
  seq_lens[0] = 30;
  seq_lens[1] = 30;
  args.batch.key_start = key_start;
  EXPECT_EQ(CommonPrefixOnHost(args), 22);  // tokens 10 to 31
  key_start[1] = 9;
  EXPECT_EQ(CommonPrefixOnHost(args), 0);
}

TEST_F(PrefixOfTwo, RowsOutsideTheTableShareNothing) {
  seq_lens[1] = 49;
  EXPECT_EQ(CommonPrefixOnHost(args), 0);
  seq_lens[1] = INT32_MAX;
  EXPECT_EQ(CommonPrefixOnHost(args), 0);
  seq_lens[1] = 34;
  table_row[1] = 3;
  EXPECT_EQ(CommonPrefixOnHost(args), 0);
}

TEST_F(PrefixOfTwo, RejectsInvalidArgumentsByNameInBothForms) {
  const CommonPrefixArgs good = args;
  const auto refusal = [&] {
    const absl::Status status = CheckCommonPrefix(args);
#ifdef REPRISE_WITH_CUDA
    EXPECT_EQ(LaunchCommonPrefix(args, nullptr), status);
#endif
    args = good;
    return std::string(status.message());
  };
  ASSERT_EQ(CheckCommonPrefix(args), absl::OkStatus());
  args.block_size = 0;
  EXPECT_EQ(refusal(), "block_size: expected at least 1, got 0");
  args.batch.num_rows = -1;
  EXPECT_EQ(refusal(), "num_rows: expected at least 0, got -1");
  args.batch.num_tables = -1;
  EXPECT_EQ(refusal(), "num_tables: expected at least 0, got -1");
  args.batch.max_blocks = -1;
  EXPECT_EQ(refusal(), "max_blocks: expected at least 0, got -1");
  args.batch.query_start_loc = nullptr;
  EXPECT_EQ(refusal(), "query_start_loc: expected an array, got none");
  args.batch.seq_lens = nullptr;
  EXPECT_EQ(refusal(), "seq_lens: expected an array, got none");
  args.batch.block_table = nullptr;
  EXPECT_EQ(refusal(), "block_table: expected an array, got none");
#ifdef REPRISE_WITH_CUDA
  const std::string no_array = "common_prefix_len, scratch: expected arrays, got none";
  EXPECT_EQ(LaunchCommonPrefix(args, nullptr).message(), no_array);
  uint32_t scratch[2] = {0, 0};
  args.scratch = scratch;
  args.common_prefix_len = nullptr;
  EXPECT_EQ(LaunchCommonPrefix(args, nullptr).message(), no_array);
#endif
}

// The largest len that ends at a block boundary, and for which the first len keys of every row are
// before its queries and in the same slots.
int PrefixByDefinition(const CommonPrefixArgs& args) {
  const PagedBatch& batch = args.batch;
  std::optional<std::vector<int64_t>> common;
  int key_start = 0;
  for (int r = 0; r < batch.num_rows; ++r) {
    const int query_len = batch.query_start_loc[r + 1] - batch.query_start_loc[r];
    if (query_len == 0 || batch.seq_lens[r] == 0) continue;
    key_start = batch.key_start[r];
    std::vector<int64_t> keys;
    for (int key = 0; key < batch.seq_lens[r] - query_len; ++key) {
      const int64_t place = int64_t{batch.key_start[r]} + key;
      keys.push_back(int64_t{batch.block_table[batch.table_row[r] * batch.block_table_stride +
                                               place / args.block_size]} *
                         args.block_size +
                     place % args.block_size);
    }
    if (!common) common = keys;
    const auto end = std::ranges::mismatch(*common, keys).in1;
    common->erase(end, common->end());
  }
  int len = common ? static_cast<int>(common->size()) : 0;
  while (len > 0 && (key_start + len) % args.block_size != 0) --len;
  return len;
}

TEST(CommonPrefixTest, MatchesTheDefinitionOnRandomBatches) {
  int num_found = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const PrefixShape shape = DrawPrefixShape(random);
    BuilderMemory<CommonPrefixArgs> memory(
        [&](ArrayCarver& carver) { return CarvePrefix(shape, carver); });
    DrawPrefix(random, shape, 0, memory.args());
    const AllocationCounter allocations;
    const int len = CommonPrefixOnHost(memory.args());
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_EQ(len, PrefixByDefinition(memory.args())) << "seed " << seed;
    num_found += len > 0;
  }
  EXPECT_GT(num_found, 5000);
}

// Cascade: each row's keys are the keys of the prefix, in shared items, followed by its own keys
// (invariant 1 of a tile schedule), for the prefix that was found, a shorter one or none.
TEST(CommonPrefixTest, TileScheduleSharesWholeKvTilesOfThePrefix) {
  int num_shared = 0;
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    PrefixShape shape = DrawPrefixShape(random);
    shape.max_blocks = std::min(std::max(shape.max_blocks, 10), 400 / shape.block_size + 1);
    BuilderMemory<CommonPrefixArgs> memory(
        [&](ArrayCarver& carver) { return CarvePrefix(shape, carver); });
    DrawPrefix(random, shape, 0, memory.args());
    int32_t len = CommonPrefixOnHost(memory.args());
    if (random.OneIn(4)) len = random.Pick({-3, 0, random.Int(0, len)});
    PagedBatch batch = memory.args().batch;
    batch.common_prefix_len = &len;
    batch.num_tokens = batch.query_start_loc[batch.num_rows];
    batch.max_query_len = 5;
    batch.max_seq_len = shape.max_blocks * shape.block_size;
    AttentionParams layer = {
        .num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 64, .head_dim_v = 64};
    if (random.OneIn(3)) layer.window_left = random.Int(0, 100);
    TileScheduleOptions options = OptionsFor(batch, layer, DType::kBFloat16);
    options.device.num_sms = random.Pick({1, 7, 132});
    options.shared_prefix = SharedPrefix::kTaken;
    options.shared_tiles = random.Pick({SharedTiles::kLarge, SharedTiles::kSmall});
    HostTileSchedule work(options);
    ASSERT_EQ(TileScheduleOnHost(batch, WindowOf(layer), work.schedule()).status(),
              absl::OkStatus());
    ASSERT_EQ(CheckTileSchedule(work.schedule(), batch, WindowOf(layer)), absl::OkStatus());
    int shared_keys = 0;
    for (int i = 0; i < work.schedule().main.counts[0]; ++i) {
      const WorkItem& item = work.schedule().main.items[i];
      if (item.row == kSharedRow) shared_keys = std::max(shared_keys, item.key_end);
    }
    const bool is_read_flat = layer.window_left || batch.num_tokens < 2 || len < kWorkStepKeys;
    ASSERT_EQ(shared_keys, is_read_flat ? 0 : len / kWorkStepKeys * kWorkStepKeys);
    num_shared += shared_keys > 0;
  }
  EXPECT_GT(num_shared, 300);
}

}  // namespace
}  // namespace reprise
