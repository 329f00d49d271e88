// The lengths that a cache can hold.

#include "reprise/engine/scheduling/cache_limits.h"

#include "gtest/gtest.h"
#include "reprise/engine/testing/waiting_requests.h"

namespace reprise {
namespace {

TEST(CacheLimitsTest, TheLongestSequenceFillsThePoolOrHasMaxSeqLen) {
  RunnerShape shape = SmallShape();
  {
    const BlockManager blocks = MakeBlocks(shape);
    const CacheLimits limits(shape, blocks);
    EXPECT_EQ(limits.max_tokens(), 40);  // 20 blocks of 4 would hold 80
    EXPECT_FALSE(limits.is_pool_the_limit());
  }
  shape.num_blocks = 6;  // 5 blocks and the null block
  const BlockManager blocks = MakeBlocks(shape);
  const CacheLimits limits(shape, blocks);
  EXPECT_EQ(limits.max_tokens(), 20);
  EXPECT_TRUE(limits.is_pool_the_limit());
}

TEST(CacheLimitsTest, PositionsOfSeveralDimensionsLimitASequence) {
  RunnerShape shape = SmallShape();
  shape.max_position = 30;
  SequenceTable table(1);
  RequestState& request = AddRequest(table, {.prompt = {1}});
  request.content.position_delta = 4;
  const BlockManager blocks = MakeBlocks(shape);
  EXPECT_EQ(CacheLimits(shape, blocks).MaxTokens(request.sequences[0]), 40) << "one dimension";
  shape.num_position_dims = 3;
  const CacheLimits limits(shape, blocks);
  EXPECT_EQ(limits.MaxTokens(request.sequences[0]), 26);
  request.content.position_delta = -20;  // an image may have fewer positions than tokens
  EXPECT_EQ(limits.MaxTokens(request.sequences[0]), 40);
}

TEST(CacheLimitsTest, WithoutWindowsAChunkIsNotLimited) {
  RunnerShape shape = SmallShape();
  shape.num_blocks = 3;
  const BlockManager blocks = MakeBlocks(shape);
  const CacheLimits limits(shape, blocks);
  EXPECT_FALSE(limits.has_windows());
  EXPECT_EQ(limits.FittingChunk(0, 0, 100), 100);
}

// A window of 4 tokens and 5 blocks of 4 tokens. After 6 cached tokens the window begins at token
// 3, so block 0 is still held, and a chunk of n tokens needs the blocks of tokens 0 to 5 + n.
TEST(CacheLimitsTest, AChunkNeedsNoMoreBlocksThanThePoolHas) {
  RunnerShape shape = SmallShape();
  shape.num_blocks = 6;
  shape.groups = {{.retention = KvRetention::kSlidingWindow, .span = 4}};
  const BlockManager blocks = MakeBlocks(shape);
  const CacheLimits limits(shape, blocks);
  EXPECT_TRUE(limits.has_windows());
  EXPECT_EQ(limits.FittingChunk(0, 0, 100), 20);
  EXPECT_EQ(limits.FittingChunk(0, 0, 19), 19);
  EXPECT_EQ(limits.FittingChunk(6, 0, 100), 14);
  // After 9 tokens the window begins at token 6: block 0 is released.
  EXPECT_EQ(limits.FittingChunk(9, 0, 100), 15);
  EXPECT_EQ(limits.FittingChunk(9, 0, 1), 1);
}

}  // namespace
}  // namespace reprise
