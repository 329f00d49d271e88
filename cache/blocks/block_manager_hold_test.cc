// Holds of BlockManager: references of copies that have not completed.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/blocks/block_manager.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

constexpr SlotId kA(0), kB(1), kC(2);
const std::vector<int32_t> kEightTokens = {1, 2, 3, 4, 5, 6, 7, 8};

// 5 allocatable blocks of 4 tokens, unless the options differ.
BlockManager ManagerOf(BlockManagerOptions options = {}) {
  if (options.num_blocks == 0) options.num_blocks = 6;
  options.block_size = 4;
  options.num_slots = 3;
  options.max_blocks = 5;
  return *BlockManager::Create(options);
}

void AddCommitted(BlockManager& manager, SlotId slot, const std::vector<int32_t>& tokens) {
  ASSERT_TRUE(manager.Add(slot, {.tokens = tokens}).ok());
  const int num_hits = manager.num_committed(slot);
  ASSERT_TRUE(manager.Commit(slot, absl::MakeConstSpan(tokens).subspan(num_hits)).ok());
}

TEST(BlockManagerHoldTest, HeldBlockIsNotReallocated) {
  BlockManager manager = ManagerOf();
  AddCommitted(manager, kA, kEightTokens);  // blocks 1, 2
  manager.Hold(BlockId(2));
  ASSERT_TRUE(manager.Free(kA).ok());
  manager.CheckInvariants();
  EXPECT_EQ(manager.num_holds(BlockId(1)), 0);
  EXPECT_EQ(manager.num_holds(BlockId(2)), 1);
  EXPECT_EQ(manager.pool().num_used(), 1);
  EXPECT_EQ(manager.Add(kB, 20).code(), absl::StatusCode::kResourceExhausted);  // 5 blocks
  manager.Drop(BlockId(2));
  manager.CheckInvariants();
  EXPECT_TRUE(manager.Add(kB, 20).ok());
}

TEST(BlockManagerHoldTest, ABlockWithTwoHoldsIsInUseUntilBothAreDropped) {
  BlockManager manager = ManagerOf();
  AddCommitted(manager, kA, kEightTokens);
  manager.Hold(BlockId(1));
  manager.Hold(BlockId(1));
  ASSERT_TRUE(manager.Free(kA).ok());
  manager.Drop(BlockId(1));
  EXPECT_EQ(manager.num_holds(BlockId(1)), 1);
  EXPECT_EQ(manager.pool().state(BlockId(1)), BlockState::kUsed);
  manager.CheckInvariants();
  manager.Drop(BlockId(1));
  EXPECT_EQ(manager.num_holds(BlockId(1)), 0);
  EXPECT_EQ(manager.pool().state(BlockId(1)), BlockState::kFree);
  manager.CheckInvariants();
}

TEST(BlockManagerHoldTest, CommittedTokensOfAHeldBlockAreNotOverwritten) {
  for (const int num_lookahead_tokens : {0, 1}) {
    BlockManager manager = ManagerOf({.num_lookahead_tokens = num_lookahead_tokens});
    AddCommitted(manager, kA, {1, 2, 3, 4, 5, 6});  // blocks 1, 2
    manager.Hold(BlockId(2));
    ASSERT_TRUE(manager.Truncate(kA, 5).ok());
    ASSERT_TRUE(manager.Append(kA, 1).ok());  // would overwrite the second token of block 2
    EXPECT_THAT(manager.TakeCopies(), ElementsAre(BlockCopy{.src = 2, .dst = 3}));
    EXPECT_EQ(manager.pool().ref_count(BlockId(2)), 1);
    manager.CheckInvariants();
    manager.Drop(BlockId(2));
    EXPECT_EQ(manager.pool().state(BlockId(2)), BlockState::kFree);
    manager.CheckInvariants();
  }
}

// With look-ahead, Truncate() needs a copy of each held block in its range. Its own releases do not
// free blocks that are held, too.
TEST(BlockManagerHoldTest, RejectsTruncateIfHeldBlocksLeaveTooFewForItsCopy) {
  BlockManager manager = ManagerOf({.num_blocks = 4, .num_lookahead_tokens = 1});
  AddCommitted(manager, kA, {1, 2, 3, 4, 5, 6, 7, 8, 9});  // all 3 blocks
  for (const int block : {1, 2, 3}) manager.Hold(BlockId(block));
  EXPECT_EQ(manager.Truncate(kA, 2).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(manager.num_tokens(kA), 9);
  manager.CheckInvariants();
  manager.Drop(BlockId(3));
  EXPECT_TRUE(manager.Truncate(kA, 2).ok());
  EXPECT_THAT(manager.TakeCopies(), ElementsAre(BlockCopy{.src = 1, .dst = 3}));
  manager.CheckInvariants();
}

TEST(BlockManagerHoldTest, PromptSharesAHeldBlockAndKeepsItAfterTheHold) {
  BlockManager manager = ManagerOf({.prefix_reuse = PrefixReuse::kOn});
  AddCommitted(manager, kA, kEightTokens);
  manager.Hold(BlockId(2));
  manager.Hold(BlockId(1));
  ASSERT_TRUE(manager.Free(kA).ok());
  EXPECT_EQ(manager.Add(kB, {.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9}})->num_tokens, 8);
  EXPECT_THAT(manager.blocks(kB), ElementsAre(BlockId(1), BlockId(2), BlockId(3)));
  manager.Drop(BlockId(2));
  manager.Drop(BlockId(1));
  EXPECT_EQ(manager.pool().ref_count(BlockId(1)), 1);
  EXPECT_EQ(manager.pool().num_used(), 3);
  manager.CheckInvariants();
}

TEST(BlockManagerHoldTest, ACachedBlockCanBeHeld) {
  BlockManager manager = ManagerOf({.prefix_reuse = PrefixReuse::kOn});
  AddCommitted(manager, kA, kEightTokens);
  ASSERT_TRUE(manager.Free(kA).ok());
  manager.Hold(BlockId(1));
  EXPECT_EQ(manager.pool().state(BlockId(1)), BlockState::kUsed);
  ASSERT_TRUE(manager.Add(kB, 16).ok());  // evicts block 2
  EXPECT_EQ(manager.Lookup(kC, {.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9}})->num_tokens, 4);
  manager.Drop(BlockId(1));
  EXPECT_EQ(manager.pool().state(BlockId(1)), BlockState::kCached);
  manager.CheckInvariants();
}

TEST(BlockManagerHoldTest, AForgottenBlockIsFreeAfterItsLastHold) {
  BlockManager manager = ManagerOf({.prefix_reuse = PrefixReuse::kOn});
  AddCommitted(manager, kA, kEightTokens);
  manager.Hold(BlockId(1));
  ASSERT_TRUE(manager.Free(kA).ok());
  manager.ForgetPrefixes();
  EXPECT_EQ(manager.pool().state(BlockId(1)), BlockState::kUsed);
  manager.Drop(BlockId(1));
  EXPECT_EQ(manager.pool().state(BlockId(1)), BlockState::kFree);
  manager.CheckInvariants();
}

// The copy is made, although its destination no longer belongs to a sequence.
TEST(BlockManagerHoldTest, AHeldDestinationOfAPendingCopyKeepsItsCopy) {
  BlockManager manager = ManagerOf();
  AddCommitted(manager, kA, {1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(manager.Fork(kA, kB).ok());
  ASSERT_TRUE(manager.Append(kB, 1).ok());  // copies block 2 to 3
  manager.Hold(BlockId(3));
  ASSERT_TRUE(manager.Free(kB).ok());
  manager.CheckInvariants();
  EXPECT_THAT(manager.TakeCopies(), ElementsAre(BlockCopy{.src = 2, .dst = 3}));
  manager.Drop(BlockId(3));
  EXPECT_EQ(manager.pool().num_used(), 2);
  manager.CheckInvariants();
}

TEST(BlockManagerHoldTest, DroppingTheHeldDestinationOfAPendingCopyCancelsTheCopy) {
  BlockManager manager = ManagerOf();
  AddCommitted(manager, kA, {1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(manager.Fork(kA, kB).ok());
  ASSERT_TRUE(manager.Append(kB, 1).ok());
  manager.Hold(BlockId(3));
  ASSERT_TRUE(manager.Free(kB).ok());
  manager.Drop(BlockId(3));
  EXPECT_FALSE(manager.has_copies());
  EXPECT_EQ(manager.pool().num_used(), 2);
  manager.CheckInvariants();
}

TEST(BlockManagerHoldDeathTest, DiesOnInvalidHoldsAndDrops) {
  BlockManager manager = ManagerOf();
  AddCommitted(manager, kA, kEightTokens);
  EXPECT_DEATH(manager.Drop(BlockId(1)), "Drop of block 1, which is not held");
  manager.Hold(BlockId(1));
  manager.Drop(BlockId(1));
  EXPECT_DEATH(manager.Drop(BlockId(1)), "Drop of block 1, which is not held");
  EXPECT_DEATH(manager.Hold(BlockId(3)), "Share of block 3, which is not used");
  EXPECT_DEATH(manager.Hold(kNullBlock), "Share of block 0, which is not used");
  EXPECT_DEATH(manager.Hold(BlockId(6)), "block 6 is not of this pool of 6");
  EXPECT_EQ(manager.pool().num_used(), 2);
}

}  // namespace
}  // namespace reprise
