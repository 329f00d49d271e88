#include "reprise/cache/blocks/length_limits.h"

#include <utility>
#include <vector>

#include "glog/logging.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

// Tables of 10 blocks of 4 tokens.
BlockManager BlocksOf(int num_blocks, std::vector<KvGroupSpec> groups = {{}}) {
  auto blocks = BlockManager::Create({.num_blocks = num_blocks,
                                      .block_size = 4,
                                      .num_slots = 4,
                                      .max_blocks = 10,
                                      .groups = std::move(groups)});
  CHECK(blocks.ok()) << blocks.status();
  return *std::move(blocks);
}

TEST(LengthLimitsTest, MaxSeqLenIsTheLimitInALargePool) {
  const LengthLimits limits = LengthLimitsOf(BlocksOf(21), 40, /*num_uncommitted=*/1);
  EXPECT_EQ(limits.max_tokens, 40);
  EXPECT_FALSE(limits.is_pool_the_limit);
  EXPECT_FALSE(limits.has_windows);
}

// The null block does not count.
TEST(LengthLimitsTest, PoolThatFitsExactlyMaxSeqLenIsNotTheLimit) {
  const LengthLimits exact = LengthLimitsOf(BlocksOf(11), 40, /*num_uncommitted=*/1);
  EXPECT_EQ(exact.max_tokens, 40);
  EXPECT_FALSE(exact.is_pool_the_limit);
  const LengthLimits less = LengthLimitsOf(BlocksOf(10), 40, /*num_uncommitted=*/1);
  EXPECT_EQ(less.max_tokens, 36);
  EXPECT_TRUE(less.is_pool_the_limit);
}

TEST(LengthLimitsTest, LastBlockMayExtendPastMaxSeqLen) {
  const LengthLimits limits = LengthLimitsOf(BlocksOf(11), 38, /*num_uncommitted=*/1);
  EXPECT_EQ(limits.max_tokens, 38);
  EXPECT_FALSE(limits.is_pool_the_limit);
}

// 5 blocks hold 20 tokens. A window allows longer sequences, because it releases blocks before the
// window.
TEST(LengthLimitsTest, UncommittedTokensKeepBlocksInAWindow) {
  const BlockManager blocks = BlocksOf(6, {{.retention = KvRetention::kSlidingWindow, .span = 4}});
  const LengthLimits one = LengthLimitsOf(blocks, 40, /*num_uncommitted=*/1);
  EXPECT_TRUE(one.has_windows);
  EXPECT_EQ(one.max_tokens, 40);
  EXPECT_FALSE(one.is_pool_the_limit);
  const LengthLimits all = LengthLimitsOf(blocks, 40, /*num_uncommitted=*/40);
  EXPECT_TRUE(all.has_windows);
  EXPECT_EQ(all.max_tokens, 20);
  EXPECT_TRUE(all.is_pool_the_limit);
}

TEST(LengthLimitsTest, EncoderInputUsesBlocks) {
  const BlockManager blocks = BlocksOf(8, {{}, {.retention = KvRetention::kCross}});
  EXPECT_EQ(LengthLimitsOf(blocks, 40, 1).max_tokens, 28);
  EXPECT_EQ(LengthLimitsOf(blocks, 40, 1, /*num_encoder_tokens=*/8).max_tokens, 20);
}

}  // namespace
}  // namespace reprise
