#include "reprise/runner/runner_shape.h"

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(RunnerShapeTest, HasAColumnForEachBlockOfTheLongestSequence) {
  EXPECT_EQ((RunnerShape{.max_seq_len = 1, .block_size = 16}).max_blocks(), 1);
  EXPECT_EQ((RunnerShape{.max_seq_len = 16, .block_size = 16}).max_blocks(), 1);
  EXPECT_EQ((RunnerShape{.max_seq_len = 17, .block_size = 16}).max_blocks(), 2);
}

TEST(RunnerShapeTest, HasAColumnForEachBlockOfTheLongestInputOfAnEncoder) {
  const RunnerShape shape = {.max_seq_len = 16, .block_size = 16, .max_encoder_tokens = 33};
  EXPECT_EQ(shape.max_blocks(), 3);
}

TEST(RunnerShapeTest, MayUpdateEveryEntryOfEveryTable) {
  const RunnerShape shape = {
      .max_num_seqs = 5, .max_seq_len = 40, .block_size = 16, .groups = {{}, {}}};
  EXPECT_EQ(shape.max_updates(), 2 * 5 * 3);
}

// 2 groups with 65,536 slots of 65,536 blocks each.
TEST(RunnerShapeTest, CountsMoreUpdatesThan32BitsHold) {
  const RunnerShape shape = {
      .max_num_seqs = 1 << 16, .max_seq_len = 1 << 20, .block_size = 16, .groups = {{}, {}}};
  EXPECT_EQ(shape.max_updates(), int64_t{1} << 33);
}

TEST(RunnerShapeTest, GivesABlockManagerItsSizesAndGroups) {
  const RunnerShape shape = {.max_num_seqs = 5,
                             .max_seq_len = 40,
                             .num_blocks = 30,
                             .block_size = 8,
                             .groups = {{}, {.retention = KvRetention::kSlidingWindow, .span = 8}}};
  const BlockManagerOptions options = BlockOptionsOf(shape);
  EXPECT_EQ(options.num_blocks, 30);
  EXPECT_EQ(options.block_size, 8);
  EXPECT_EQ(options.num_slots, 5);
  EXPECT_EQ(options.max_blocks, 5);
  EXPECT_EQ(options.groups, shape.groups);
  EXPECT_EQ(options.prefix_reuse, PrefixReuse::kOff);
}

TEST(RunnerShapeTest, BlockManagerStoresTokensOnlyForPartialHits) {
  const RunnerShape shape = {.max_num_seqs = 5, .max_seq_len = 40, .num_blocks = 30};
  const BlockManagerOptions whole = BlockOptionsOf(shape, PrefixReuse::kOn, PartialHits::kNone);
  EXPECT_EQ(whole.num_blocks, 30);
  EXPECT_EQ(whole.prefix_reuse, PrefixReuse::kOn);
  EXPECT_EQ(whole.partial_hits, PartialHits::kNone);
  EXPECT_EQ(whole.prefix_tokens, PrefixTokens::kNotStored);
  const BlockManagerOptions partial = BlockOptionsOf(shape, PrefixReuse::kOn, PartialHits::kCopied);
  EXPECT_EQ(partial.partial_hits, PartialHits::kCopied);
  EXPECT_EQ(partial.prefix_tokens, PrefixTokens::kStored);
}

}  // namespace
}  // namespace reprise
