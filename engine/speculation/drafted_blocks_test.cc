#include "reprise/engine/speculation/drafted_blocks.h"

#include <vector>

#include "gtest/gtest.h"

namespace reprise {
namespace {

// Blocks of four tokens.
constexpr DraftedBlocksOptions kOptions = {.num_blocks = 10, .block_size = 4};

TEST(DraftedBlocksTest, CountsTheTokensReadByTheDrafterPerBlock) {
  DraftedBlocks drafted(kOptions);
  const std::vector<BlockId> blocks = {BlockId(7), BlockId(2), BlockId(5)};
  EXPECT_EQ(drafted.NumSeen(blocks, 12), 0);
  drafted.Set(blocks, {.first = 0, .end = 6}, /*num_seen=*/6);
  EXPECT_EQ(drafted.NumSeen(blocks, 12), 6);
  EXPECT_EQ(drafted.NumSeen(blocks, 5), 5);
  // The sequence commits two more tokens. The drafter has read one of them.
  drafted.Set(blocks, {.first = 6, .end = 8}, /*num_seen=*/7);
  EXPECT_EQ(drafted.NumSeen(blocks, 8), 7);
  drafted.Set(blocks, {.first = 8, .end = 12}, /*num_seen=*/7);
  EXPECT_EQ(drafted.NumSeen(blocks, 12), 7);
  // The drafter catches up.
  drafted.Set(blocks, {.first = 7, .end = 11}, /*num_seen=*/11);
  EXPECT_EQ(drafted.NumSeen(blocks, 12), 11);
  EXPECT_EQ(drafted.NumSeen({BlockId(7), BlockId(2)}, 8), 8);
  EXPECT_EQ(drafted.NumSeen({BlockId(7), BlockId(3)}, 8), 4) << "a block of another sequence";
}

TEST(DraftedBlocksTest, ReallocatedBlockHasTheCountOfItsNewTokens) {
  DraftedBlocks drafted(kOptions);
  const std::vector<BlockId> blocks = {BlockId(1), BlockId(2)};
  drafted.Set(blocks, {.first = 0, .end = 8}, /*num_seen=*/8);
  drafted.Set(blocks, {.first = 0, .end = 3}, /*num_seen=*/0);
  EXPECT_EQ(drafted.NumSeen(blocks, 8), 0);
  drafted.Set(blocks, {.first = 3, .end = 3}, /*num_seen=*/8);
  EXPECT_EQ(drafted.NumSeen(blocks, 8), 0) << "an empty range";
}

TEST(DraftedBlocksTest, CopyHasTheCountOfItsSource) {
  DraftedBlocks drafted(kOptions);
  drafted.Set({BlockId(1)}, {.first = 0, .end = 4}, /*num_seen=*/3);
  drafted.Copy(BlockId(1), BlockId(8));
  EXPECT_EQ(drafted.NumSeen({BlockId(8)}, 4), 3);
  EXPECT_EQ(drafted.NumSeen({BlockId(8)}, 2), 2);
}

}  // namespace
}  // namespace reprise
