// Forks of sequences in BlockManager, copy-on-write, and truncation into shared blocks.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/blocks/block_manager.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr SlotId kA(0), kB(1), kC(2), kD(3);

// 9 allocatable blocks of 4 tokens, unless the options differ.
BlockManager ManagerOf(BlockManagerOptions options = {}) {
  if (options.num_blocks == 0) options.num_blocks = 10;
  options.block_size = 4;
  options.num_slots = 4;
  options.max_blocks = 6;
  return *BlockManager::Create(options);
}

void AddCommitted(BlockManager& manager, SlotId slot, int num_tokens) {
  ASSERT_TRUE(manager.Add(slot, num_tokens).ok());
  ASSERT_TRUE(manager.CommitUnknown(slot, num_tokens).ok());
}

TEST(BlockManagerForkTest, AForkSharesTheBlocksOfCommittedTokens) {
  BlockManager manager = ManagerOf();
  AddCommitted(manager, kA, 6);             // blocks 1, 2
  ASSERT_TRUE(manager.Append(kA, 4).ok());  // and 3, in flight
  ASSERT_TRUE(manager.Fork(kA, kB).ok());
  EXPECT_EQ(manager.num_tokens(kB), 6);
  EXPECT_THAT(manager.blocks(kB), ElementsAre(BlockId(1), BlockId(2)));
  EXPECT_EQ(manager.pool().num_used(), 3);
  EXPECT_THAT(manager.TakeCopies(), IsEmpty());
  manager.CheckInvariants();
}

TEST(BlockManagerForkTest, FirstWriterCopiesAndLastWriterDoesNot) {
  BlockManager manager = ManagerOf();
  AddCommitted(manager, kA, 6);
  ASSERT_TRUE(manager.Fork(kA, kB).ok());
  manager.TakeUpdates();
  ASSERT_TRUE(manager.Append(kA, 1).ok());
  EXPECT_THAT(manager.blocks(kA), ElementsAre(BlockId(1), BlockId(3)));
  EXPECT_THAT(manager.TakeCopies(), ElementsAre(BlockCopy{.src = 2, .dst = 3}));
  const absl::Span<const BlockTableUpdate> updates = manager.TakeUpdates();
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_EQ(updates[0].column, 1);
  EXPECT_EQ(updates[0].block, BlockId(3));
  ASSERT_TRUE(manager.Append(kB, 1).ok());
  EXPECT_THAT(manager.blocks(kB), ElementsAre(BlockId(1), BlockId(2)));
  EXPECT_FALSE(manager.has_copies());
  manager.CheckInvariants();
}

TEST(BlockManagerForkTest, AFullLastBlockIsNeverCopied) {
  BlockManager manager = ManagerOf();
  AddCommitted(manager, kA, 8);
  ASSERT_TRUE(manager.Fork(kA, kB).ok());
  ASSERT_TRUE(manager.Append(kA, 1).ok());
  ASSERT_TRUE(manager.Append(kB, 1).ok());
  EXPECT_FALSE(manager.has_copies());
  EXPECT_EQ(manager.pool().num_used(), 4);  // 2 shared, and 1 each
}

TEST(BlockManagerForkTest, CopyOfAPendingDestinationReadsFromItsOrigin) {
  BlockManager manager = ManagerOf();
  AddCommitted(manager, kA, 2);
  ASSERT_TRUE(manager.Fork(kA, kB).ok());
  ASSERT_TRUE(manager.Append(kB, 1).ok());  // 1 -> 2, pending
  ASSERT_TRUE(manager.Fork(kB, kC).ok());   // shares 2
  ASSERT_TRUE(manager.Append(kC, 1).ok());  // in the same step: copied from 1, not from 2
  EXPECT_THAT(manager.TakeCopies(),
              ElementsAre(BlockCopy{.src = 1, .dst = 2}, BlockCopy{.src = 1, .dst = 3}));
  manager.CheckInvariants();
}

TEST(BlockManagerForkTest, SourceIsHeldUntilItsCopyIsTaken) {
  BlockManager manager = ManagerOf();
  AddCommitted(manager, kA, 2);
  ASSERT_TRUE(manager.Fork(kA, kB).ok());
  ASSERT_TRUE(manager.Append(kB, 1).ok());
  ASSERT_TRUE(manager.Free(kA).ok());
  EXPECT_EQ(manager.pool().num_used(), 2);  // block 1 has not been read yet
  manager.CheckInvariants();
  EXPECT_THAT(manager.TakeCopies(), ElementsAre(BlockCopy{.src = 1, .dst = 2}));
  EXPECT_EQ(manager.pool().num_used(), 1);
}

TEST(BlockManagerForkTest, AppendBatchCountsCopiesBeforeItChangesState) {
  BlockManager manager = ManagerOf({.num_blocks = 4});  // 3 blocks
  AddCommitted(manager, kA, 6);                         // 2
  ASSERT_TRUE(manager.Fork(kA, kB).ok());
  ASSERT_TRUE(manager.Add(kC, 1).ok());  // the last block
  const SlotAppend batch[] = {{kA, 1}};
  const absl::Status refused = manager.AppendBatch(batch);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the batch of 1 needs 1"));
  EXPECT_EQ(manager.num_tokens(kA), 6);
  EXPECT_THAT(manager.blocks(kA), ElementsAre(BlockId(1), BlockId(2)));
  manager.CheckInvariants();
  ASSERT_TRUE(manager.Free(kB).ok());
  EXPECT_TRUE(manager.AppendBatch(batch).ok());  // written in place
  EXPECT_FALSE(manager.has_copies());
}

TEST(BlockManagerForkTest, TruncationIntoSharedBlocksShortensOneSequenceOnly) {
  BlockManager manager = ManagerOf();
  AddCommitted(manager, kA, 10);
  ASSERT_TRUE(manager.Fork(kA, kB).ok());
  ASSERT_TRUE(manager.Truncate(kA, 5).ok());
  EXPECT_THAT(manager.blocks(kA), ElementsAre(BlockId(1), BlockId(2)));
  EXPECT_THAT(manager.blocks(kB), ElementsAre(BlockId(1), BlockId(2), BlockId(3)));
  ASSERT_TRUE(manager.Append(kA, 1).ok());
  EXPECT_THAT(manager.TakeCopies(), ElementsAre(BlockCopy{.src = 2, .dst = 4}));
  EXPECT_EQ(manager.num_committed(kA), 5);
  EXPECT_EQ(manager.num_committed(kB), 10);
  manager.CheckInvariants();
}

TEST(BlockManagerForkTest, ForkWithLookAheadCopiesImmediately) {
  BlockManager manager = ManagerOf({.num_lookahead_tokens = 3});
  AddCommitted(manager, kA, 6);  // 6 + 3: blocks 1, 2, 3
  ASSERT_TRUE(manager.Fork(kA, kB).ok());
  // The device may write tokens 6 to 8 of both sequences without another call.
  EXPECT_THAT(manager.blocks(kB), ElementsAre(BlockId(1), BlockId(4), BlockId(5)));
  EXPECT_THAT(manager.TakeCopies(), ElementsAre(BlockCopy{.src = 2, .dst = 4}));
  manager.CheckInvariants();
  // A truncation also copies the shared blocks of tokens 2 to 4.
  ASSERT_TRUE(manager.Truncate(kB, 2).ok());
  EXPECT_THAT(manager.TakeCopies(), ElementsAre(BlockCopy{.src = 1, .dst = 5}));
  EXPECT_THAT(manager.blocks(kB), ElementsAre(BlockId(5), BlockId(4)));
  manager.CheckInvariants();
}

TEST(BlockManagerForkTest, TruncationThatNeedsANewBlockMayBeRejected) {
  BlockManager manager = ManagerOf({.num_blocks = 5, .num_lookahead_tokens = 3});
  AddCommitted(manager, kA, 4);            // 4 + 3: blocks 1, 2
  ASSERT_TRUE(manager.Fork(kA, kB).ok());  // shares 1, and 3
  ASSERT_TRUE(manager.Add(kC, 1).ok());    // 4
  // Tokens 2 and 3 would be written to block 1, and block 3 is still needed for token 4.
  const absl::Status refused = manager.Truncate(kB, 2);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(manager.num_tokens(kB), 4);
  EXPECT_EQ(manager.num_committed(kB), 4);
  EXPECT_THAT(manager.blocks(kB), ElementsAre(BlockId(1), BlockId(3)));
  EXPECT_FALSE(manager.has_copies());
  manager.CheckInvariants();
}

TEST(BlockManagerForkTest, TruncationMayCopyToABlockThatItReleases) {
  BlockManager manager = ManagerOf({.num_blocks = 5, .num_lookahead_tokens = 1});
  AddCommitted(manager, kA, 8);            // 8 + 1: blocks 1, 2, 3
  ASSERT_TRUE(manager.Fork(kA, kB).ok());  // shares 1, 2, and 4
  ASSERT_EQ(manager.pool().num_allocatable_reserved(), 0);
  ASSERT_TRUE(manager.Truncate(kA, 6).ok());  // 6 + 1: releases block 3; block 2 must be replaced
  EXPECT_THAT(manager.blocks(kA), ElementsAre(BlockId(1), BlockId(3)));
  EXPECT_THAT(manager.TakeCopies(), ElementsAre(BlockCopy{.src = 2, .dst = 3}));
  manager.CheckInvariants();
}

TEST(BlockManagerForkTest, TruncationMayCopyToTheSourceOfADroppedCopy) {
  BlockManager manager = ManagerOf({.num_blocks = 6, .num_lookahead_tokens = 3});
  AddCommitted(manager, kA, 9);            // 9 + 3: blocks 1, 2, 3
  ASSERT_TRUE(manager.Fork(kA, kB).ok());  // shares 1, 2, and 4 is a copy of 3
  manager.TakeCopies();
  ASSERT_TRUE(manager.Fork(kA, kC).ok());  // shares 1, 2, and 5 will be a copy of 3
  ASSERT_TRUE(manager.Free(kA).ok());      // only that copy holds block 3
  ASSERT_EQ(manager.pool().num_allocatable_reserved(), 0);
  // 2 + 3 tokens use blocks 1 and 2, which are replaced. Block 5 is released, and with its copy
  // block 3.
  ASSERT_TRUE(manager.Truncate(kC, 2).ok());
  EXPECT_THAT(manager.blocks(kB), ElementsAre(BlockId(1), BlockId(2), BlockId(4)));
  EXPECT_THAT(manager.blocks(kC), UnorderedElementsAre(BlockId(3), BlockId(5)));
  EXPECT_THAT(manager.TakeCopies(),
              ElementsAre(BlockCopy{.src = 1, .dst = manager.blocks(kC)[0].value()}));
  manager.CheckInvariants();
}

TEST(BlockManagerForkTest, RejectsInvalidForks) {
  BlockManager manager = ManagerOf();
  AddCommitted(manager, kA, 3);
  AddCommitted(manager, kB, 3);
  EXPECT_EQ(manager.Fork(kA, kB).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(manager.Fork(kA, kA).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(manager.Fork(kC, kD).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(manager.Fork(kA, SlotId(4)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(manager.Fork(SlotId(-1), kC).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(manager.num_sequences(), 2);
}

}  // namespace
}  // namespace reprise
