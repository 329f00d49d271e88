#include "reprise/cache/blocks/sequence_blocks.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/kv_group.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

constexpr SlotId kA(0), kB(1);
constexpr KvGroupSpec kFull = {};
constexpr KvGroupSpec kWindowOf4 = {.retention = KvRetention::kSlidingWindow, .span = 4};

// 19 allocatable blocks of 4 tokens.
SequenceBlocks SequencesOf(std::vector<KvGroupSpec> groups, int num_lookahead_tokens = 0) {
  return *SequenceBlocks::Create({.num_blocks = 20,
                                  .block_size = 4,
                                  .num_slots = 2,
                                  .max_blocks = 6,
                                  .num_lookahead_tokens = num_lookahead_tokens,
                                  .groups = std::move(groups),
                                  .prefix_reuse = PrefixReuse::kOn});
}

void Add(SequenceBlocks& sequences, SlotId slot, const std::vector<int32_t>& tokens) {
  const int num_tokens = static_cast<int>(tokens.size());
  sequences.Start(slot).num_tokens = num_tokens;
  sequences.content().Begin(slot, {});
  sequences.GrowTo(slot, sequences.NumColumns(num_tokens));
  sequences.Commit(slot, tokens);
}

TEST(SequenceBlocksTest, SequenceHasTheBlocksOfItsTokensInEachGroup) {
  SequenceBlocks sequences = SequencesOf({kFull, kWindowOf4});
  Add(sequences, kA, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_THAT(sequences.tables().blocks(kA, 0), ElementsAre(BlockId(1), BlockId(2), BlockId(3)));
  EXPECT_THAT(sequences.tables().blocks(kA, 1), ElementsAre(kNullBlock, BlockId(5), BlockId(6)));
  EXPECT_EQ(sequences.pool().num_used(), sequences.NumBlocksFor(9, 9));  // 3 + 2
  EXPECT_EQ(sequences.num_sequences(), 1);
  sequences.CheckInvariants();
  sequences.End(kA);
  EXPECT_EQ(sequences.pool().num_used(), 0);
  EXPECT_EQ(sequences.num_sequences(), 0);
  sequences.CheckInvariants();
}

TEST(SequenceBlocksTest, MakeOwnCopiesTheKeptTokensOfSharedBlocksOnly) {
  SequenceBlocks sequences = SequencesOf({kFull});
  Add(sequences, kA, {1, 2, 3, 4, 5, 6});  // blocks 1, 2
  sequences.Fork(kA, kB);
  EXPECT_EQ(sequences.NumToCopy(kB, 6, 2), 1);
  sequences.MakeOwn(kB, 6);
  EXPECT_THAT(sequences.tables().blocks(kB, 0), ElementsAre(BlockId(1), BlockId(3)));
  EXPECT_EQ(sequences.NumToCopy(kB, 6, 2), 0);
  EXPECT_THAT(sequences.TakeCopies(), ElementsAre(BlockCopy{.src = 2, .dst = 3}));
  sequences.CheckInvariants();
}

TEST(SequenceBlocksTest, NumFreedBeyondMatchesShrinkTo) {
  SequenceBlocks sequences = SequencesOf({kFull});
  Add(sequences, kA, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});  // blocks 1, 2, 3
  sequences.Hold(BlockId(2));
  EXPECT_EQ(sequences.NumFreedBeyond(kA, 1), 1);
  const int num_before = sequences.pool().num_allocatable();
  sequences[kA].num_tokens = sequences[kA].num_committed = 4;
  sequences.content().Truncate(kA, 4);
  sequences.ShrinkTo(kA, 1);
  EXPECT_EQ(sequences.pool().num_allocatable(), num_before + 1);
  sequences.CheckInvariants();
  sequences.Drop(BlockId(2));
  EXPECT_EQ(sequences.pool().num_allocatable(), num_before + 2);
  sequences.CheckInvariants();
}

TEST(SequenceBlocksTest, LoadedSequenceIsFoundAfterConfirmLoaded) {
  SequenceBlocks sequences = SequencesOf({kFull, kWindowOf4}, /*num_lookahead_tokens=*/3);
  Add(sequences, kA, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  const SavedSequence saved = sequences.Save(kA);
  sequences.End(kA);
  const int64_t num_blocks = sequences.NumBlocksToLoad(saved);
  EXPECT_EQ(num_blocks, 5);  // 3 for 12 tokens; without the first block in the window
  sequences.cache().Clear();
  sequences.Load(kB, saved);
  EXPECT_EQ(sequences.pool().num_used(), num_blocks);
  EXPECT_EQ(sequences.tables().first(kB, 1), 1);
  EXPECT_EQ(sequences.cache().index().num_indexed(), 0);
  sequences.CheckInvariants();
  sequences.ConfirmLoaded(kB);
  EXPECT_EQ(sequences.cache().index().num_indexed(), 3);  // columns 0 and 1, and 1
  sequences.CheckInvariants();
}

TEST(SequenceBlocksDeathTest, CheckInvariantsDiesOnWrongLengths) {
  SequenceBlocks sequences = SequencesOf({kFull});
  Add(sequences, kA, {1, 2, 3, 4, 5});
  sequences[kA].num_committed = 6;
  EXPECT_DEATH(sequences.CheckInvariants(), "invariant 5, slot 0");
  sequences[kA] = {.num_tokens = 9, .num_committed = 5, .is_live = true};
  EXPECT_DEATH(sequences.CheckInvariants(), "invariant 2, slot 0");
}

TEST(SequenceBlocksDeathTest, CheckInvariantsDiesOnAReferenceWithoutAnOwner) {
  SequenceBlocks sequences = SequencesOf({kFull});
  Add(sequences, kA, {1, 2, 3, 4, 5});
  sequences.cache().Share(BlockId(2));
  EXPECT_DEATH(sequences.CheckInvariants(), "invariant 3, block 2");
}

TEST(SequenceBlocksDeathTest, CheckInvariantsDiesOnAnIndexedLookAheadBlock) {
  SequenceBlocks sequences = SequencesOf({kFull}, /*num_lookahead_tokens=*/3);
  Add(sequences, kA, {1, 2, 3, 4, 5});
  sequences.cache().Insert(BlockId(2), {.hash = {.low = 1, .high = 2}});
  EXPECT_DEATH(sequences.CheckInvariants(), "invariant 4, slot 0");
}

}  // namespace
}  // namespace reprise
