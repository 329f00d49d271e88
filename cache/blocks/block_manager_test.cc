#include "reprise/cache/blocks/block_manager.h"

#include <climits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {

// Found by argument-dependent lookup in matchers.
void PrintTo(const BlockTableUpdate& u, std::ostream* out) {
  *out << "{" << u.slot << ", " << u.column << ", " << u.block << "}";
}

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr SlotId kA(0), kB(1), kC(2);

BlockTableUpdate Update(SlotId slot, int column, int block) {
  return {.slot = slot, .column = column, .block = BlockId(block)};
}

BlockManager ManagerOf(const BlockManagerOptions& options) {
  return *BlockManager::Create(options);
}

// 9 allocatable blocks of 4 tokens, 3 slots of at most 6 blocks.
BlockManager SmallManager() {
  return ManagerOf({.num_blocks = 10, .block_size = 4, .num_slots = 3, .max_blocks = 6});
}

std::string MessageOf(const absl::Status& status, absl::StatusCode code) {
  EXPECT_EQ(status.code(), code) << status;
  return std::string(status.message());
}

TEST(BlockManagerTest, SequenceHasTheBlocksOfItsTokens) {
  BlockManager manager = SmallManager();
  ASSERT_TRUE(manager.Add(kA, 9).ok());  // ceil(9 / 4) = 3
  EXPECT_THAT(manager.blocks(kA), ElementsAre(BlockId(1), BlockId(2), BlockId(3)));
  ASSERT_TRUE(manager.Append(kA, 3).ok());  // 12: full
  EXPECT_EQ(manager.blocks(kA).size(), 3);
  ASSERT_TRUE(manager.Append(kA, 1).ok());
  EXPECT_EQ(manager.blocks(kA).size(), 4);
  EXPECT_EQ(manager.num_tokens(kA), 13);
  manager.CheckInvariants();
}

TEST(BlockManagerTest, EmptySequenceHasNoBlocks) {
  BlockManager manager = SmallManager();
  ASSERT_TRUE(manager.Add(kA, 0).ok());
  EXPECT_TRUE(manager.contains(kA));
  EXPECT_THAT(manager.blocks(kA), IsEmpty());
  ASSERT_TRUE(manager.Append(kA, 0).ok());
  EXPECT_THAT(manager.TakeUpdates(), IsEmpty());
  ASSERT_TRUE(manager.Free(kA).ok());
  EXPECT_EQ(manager.pool().num_used(), 0);
}

TEST(BlockManagerTest, ReportsEveryNewEntryOnce) {
  BlockManager manager = SmallManager();
  ASSERT_TRUE(manager.Add(kB, 5).ok());
  ASSERT_TRUE(manager.Add(kA, 1).ok());
  EXPECT_THAT(manager.TakeUpdates(),
              ElementsAre(Update(kB, 0, 1), Update(kB, 1, 2), Update(kA, 0, 3)));
  EXPECT_THAT(manager.TakeUpdates(), IsEmpty());
  ASSERT_TRUE(manager.Append(kA, 3).ok());  // still in block 3
  EXPECT_THAT(manager.TakeUpdates(), IsEmpty());
  ASSERT_TRUE(manager.Append(kA, 1).ok());
  EXPECT_THAT(manager.TakeUpdates(), ElementsAre(Update(kA, 1, 4)));
}

TEST(BlockManagerTest, EntryThatChangesTwiceIsReportedOnceWithItsLastValue) {
  BlockManager manager = SmallManager();
  ASSERT_TRUE(manager.Add(kA, 8).ok());       // blocks 1, 2
  ASSERT_TRUE(manager.Truncate(kA, 4).ok());  // releases block 2
  ASSERT_TRUE(manager.Add(kB, 1).ok());       // B allocates block 2
  ASSERT_TRUE(manager.Append(kA, 1).ok());    // A allocates block 3 instead
  EXPECT_THAT(manager.TakeUpdates(),
              ElementsAre(Update(kA, 0, 1), Update(kA, 1, 3), Update(kB, 0, 2)));
}

TEST(BlockManagerTest, FreedSequencesAreNotReported) {
  BlockManager manager = SmallManager();
  ASSERT_TRUE(manager.Add(kA, 8).ok());
  ASSERT_TRUE(manager.Free(kA).ok());
  EXPECT_THAT(manager.TakeUpdates(), IsEmpty());
  ASSERT_TRUE(manager.Add(kA, 4).ok());
  EXPECT_THAT(manager.TakeUpdates(), ElementsAre(Update(kA, 0, 1)));
}

TEST(BlockManagerTest, TruncateReleasesTheBlocksPastTheEnd) {
  BlockManager manager = SmallManager();
  ASSERT_TRUE(manager.Add(kA, 17).ok());  // 5 blocks
  ASSERT_TRUE(manager.Truncate(kA, 8).ok());
  EXPECT_EQ(manager.blocks(kA).size(), 2);  // 8 tokens fill 2 blocks exactly
  EXPECT_EQ(manager.pool().num_used(), 2);
  ASSERT_TRUE(manager.Truncate(kA, 8).ok());
  ASSERT_TRUE(manager.Truncate(kA, 0).ok());
  EXPECT_EQ(manager.pool().num_used(), 0);
  EXPECT_TRUE(manager.contains(kA));
  manager.CheckInvariants();
}

TEST(BlockManagerTest, LookAheadBlocksAreAllocatedWithTheTokens) {
  BlockManager manager = ManagerOf({.num_blocks = 10,
                                    .block_size = 4,
                                    .num_slots = 3,
                                    .max_blocks = 3,
                                    .num_lookahead_tokens = 2});
  ASSERT_TRUE(manager.Add(kA, 2).ok());
  EXPECT_EQ(manager.blocks(kA).size(), 1);  // 2 + 2 = 4
  ASSERT_TRUE(manager.Append(kA, 1).ok());
  EXPECT_EQ(manager.blocks(kA).size(), 2);  // 3 + 2 = 5
  ASSERT_TRUE(manager.Append(kA, 9).ok());
  EXPECT_EQ(manager.blocks(kA).size(), 3);  // 12 + 2 = 14, but the row holds only 12
  ASSERT_TRUE(manager.Truncate(kA, 3).ok());
  EXPECT_EQ(manager.blocks(kA).size(), 2);  // keeps the look-ahead
  manager.CheckInvariants();
}

TEST(BlockManagerTest, AppendBatchIsAllOrNothing) {
  BlockManager manager = SmallManager();
  ASSERT_TRUE(manager.Add(kA, 16).ok());  // 4 blocks
  ASSERT_TRUE(manager.Add(kB, 16).ok());  // 4 blocks: 1 of 9 is left
  manager.TakeUpdates();
  const SlotAppend both[] = {{kA, 1}, {kB, 1}};
  EXPECT_THAT(MessageOf(manager.AppendBatch(both), absl::StatusCode::kResourceExhausted),
              HasSubstr("1 are available now, the batch of 2 needs 2; retry"));
  EXPECT_EQ(manager.num_tokens(kA), 16);
  EXPECT_EQ(manager.num_tokens(kB), 16);
  EXPECT_THAT(manager.TakeUpdates(), IsEmpty());
  manager.CheckInvariants();

  const SlotAppend with_unknown[] = {{kA, 1}, {kC, 1}};
  EXPECT_EQ(manager.AppendBatch(with_unknown).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(manager.num_tokens(kA), 16);

  ASSERT_TRUE(manager.Truncate(kB, 12).ok());
  EXPECT_TRUE(manager.AppendBatch(both).ok());  // now 2 are left, one for each sequence
  EXPECT_EQ(manager.num_tokens(kA), 17);
}

TEST(BlockManagerTest, ASlotMayAppearTwiceInABatch) {
  BlockManager manager = SmallManager();
  ASSERT_TRUE(manager.Add(kA, 3).ok());
  const SlotAppend twice[] = {{kA, 1}, {kA, 5}};
  ASSERT_TRUE(manager.AppendBatch(twice).ok());  // 3 + 1 + 5 = 9
  EXPECT_EQ(manager.num_tokens(kA), 9);
  EXPECT_EQ(manager.blocks(kA).size(), 3);
  const SlotAppend too_long[] = {{kA, 10}, {kA, 6}};  // 9 + 10 = 19, + 6 = 25 > 24
  EXPECT_EQ(manager.AppendBatch(too_long).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(manager.num_tokens(kA), 9);
  manager.CheckInvariants();
}

TEST(BlockManagerTest, StatusTellsTemporaryFromPermanentLackOfBlocks) {
  BlockManager manager =
      ManagerOf({.num_blocks = 6, .block_size = 4, .num_slots = 2, .max_blocks = 8});
  ASSERT_TRUE(manager.Add(kA, 12).ok());  // 3 of 5 blocks
  EXPECT_THAT(MessageOf(manager.Add(kB, 12), absl::StatusCode::kResourceExhausted),
              HasSubstr("2 are available now, requested 3; retry"));
  EXPECT_THAT(MessageOf(manager.Add(kB, 21), absl::StatusCode::kInvalidArgument),
              HasSubstr("slot 1 must fit the pool: expected at most 5 blocks of 4, got 21 tokens"));
  EXPECT_FALSE(manager.contains(kB));
  EXPECT_THAT(MessageOf(manager.Append(kA, 9), absl::StatusCode::kInvalidArgument),
              HasSubstr("slot 0 must fit the pool"));
  EXPECT_EQ(manager.max_tokens(), 20);
}

// Has 3 blocks of one token, and 2 reserved ones.
BlockManager ManagerWithReserve() {
  return ManagerOf({.num_blocks = 6,
                    .block_size = 1,
                    .num_slots = 2,
                    .max_blocks = 8,
                    .num_reserved_blocks = 2});
}

TEST(BlockManagerTest, OnlyRunningSequencesUseTheReserve) {
  BlockManager manager = ManagerWithReserve();
  EXPECT_THAT(MessageOf(manager.Add(kA, 4), absl::StatusCode::kInvalidArgument),
              HasSubstr("at most 3 blocks"));
  ASSERT_TRUE(manager.Add(kA, 3).ok());
  EXPECT_EQ(manager.Add(kB, 1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(manager.Append(kA, 2).ok());
}

TEST(BlockManagerTest, SequenceThatGrewIntoTheReserveCanBeRestored) {
  BlockManager manager = ManagerWithReserve();
  for (const int num_tokens : {3, 4, 5}) {
    ASSERT_TRUE(manager.Add(kA, 1).ok());
    ASSERT_TRUE(manager.Append(kA, num_tokens - 1).ok());
    ASSERT_TRUE(manager.Commit(kA, std::vector<int32_t>(num_tokens, 7)).ok());
    const SavedSequence saved = manager.Save(kA);
    ASSERT_TRUE(manager.Free(kA).ok());
    // Must wait for the other sequence: together they would use a reserved block.
    ASSERT_TRUE(manager.Add(kB, 1).ok());
    EXPECT_EQ(manager.Restore(kA, saved).code(), absl::StatusCode::kResourceExhausted)
        << num_tokens;
    manager.CheckInvariants();
    ASSERT_TRUE(manager.Free(kB).ok());
    ASSERT_TRUE(manager.Restore(kA, saved).ok()) << num_tokens;
    manager.ConfirmRestored(kA);
    EXPECT_EQ(manager.num_tokens(kA), num_tokens);
    manager.CheckInvariants();
    ASSERT_TRUE(manager.Free(kA).ok());
  }
  // A sequence that needs more blocks than the pool has is rejected.
  SavedSequence too_long;
  too_long.num_tokens = 6;
  too_long.first_columns = {0};
  EXPECT_THAT(MessageOf(manager.Restore(kA, too_long), absl::StatusCode::kInvalidArgument),
              HasSubstr("at most 5 blocks"));
}

TEST(BlockManagerTest, RejectsInvalidInputWithoutChanges) {
  BlockManager manager = SmallManager();
  ASSERT_TRUE(manager.Add(kA, 4).ok());
  EXPECT_THAT(MessageOf(manager.Add(kA, 1), absl::StatusCode::kAlreadyExists),
              HasSubstr("slot 0 holds a sequence of 4 tokens"));
  EXPECT_THAT(MessageOf(manager.Add(SlotId(3), 1), absl::StatusCode::kInvalidArgument),
              HasSubstr("slot must exist: expected 0 to 2, got 3"));
  EXPECT_THAT(MessageOf(manager.Add(kB, 25), absl::StatusCode::kInvalidArgument),
              HasSubstr("slot 1 must fit a table row: expected 0 to 24 (6 blocks of 4), got 25"));
  EXPECT_THAT(MessageOf(manager.Add(kB, -1), absl::StatusCode::kInvalidArgument),
              HasSubstr("got -1"));
  EXPECT_THAT(MessageOf(manager.Append(kA, INT_MAX), absl::StatusCode::kInvalidArgument),
              HasSubstr("got 2147483651"));
  EXPECT_THAT(MessageOf(manager.Append(kA, -1), absl::StatusCode::kInvalidArgument),
              HasSubstr("must not be negative"));
  EXPECT_THAT(MessageOf(manager.Append(kB, 1), absl::StatusCode::kNotFound),
              HasSubstr("slot 1 holds no sequence"));
  EXPECT_THAT(MessageOf(manager.Truncate(kA, 5), absl::StatusCode::kInvalidArgument),
              HasSubstr("expected 0 to 4, got 5"));
  EXPECT_EQ(manager.Truncate(kA, -1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(manager.Truncate(kB, 0).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(manager.Free(SlotId(-1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(manager.num_tokens(kA), 4);
  EXPECT_EQ(manager.pool().num_used(), 1);

  ASSERT_TRUE(manager.Free(kA).ok());
  EXPECT_EQ(manager.Free(kA).code(), absl::StatusCode::kNotFound);  // a double free
  manager.CheckInvariants();
}

TEST(BlockManagerTest, DecodeStepsDoNotAllocateMemory) {
  BlockManager manager =
      ManagerOf({.num_blocks = 200, .block_size = 2, .num_slots = 8, .max_blocks = 20});
  std::vector<SlotAppend> batch;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(manager.Add(SlotId(i), 1 + i).ok());
    batch.push_back({SlotId(i), 1});
  }
  AllocationCounter allocations;
  for (int step = 0; step < 25; ++step) {
    ASSERT_TRUE(manager.AppendBatch(batch).ok());
    manager.TakeUpdates();
    ASSERT_TRUE(manager.Truncate(kA, 1).ok());
    ASSERT_TRUE(manager.Free(kB).ok());
    ASSERT_TRUE(manager.Add(kB, 3).ok());
  }
  EXPECT_EQ(allocations.count(), 0);
}

TEST(BlockManagerTest, RejectsOptionsOutOfRange) {
  const auto message = [](BlockManagerOptions options) {
    return MessageOf(BlockManager::Create(options).status(), absl::StatusCode::kInvalidArgument);
  };
  const BlockManagerOptions good = {
      .num_blocks = 10, .block_size = 4, .num_slots = 3, .max_blocks = 6};
  BlockManagerOptions bad = good;
  bad.block_size = 0;
  EXPECT_THAT(message(bad), HasSubstr("block_size"));
  bad = good;
  bad.num_blocks = 1;
  EXPECT_THAT(message(bad), HasSubstr("num_blocks"));
  bad = good;
  bad.num_slots = 0;
  EXPECT_THAT(message(bad), HasSubstr("num_slots"));
  bad = good;
  bad.max_blocks = 0;
  EXPECT_THAT(message(bad), HasSubstr("max_blocks"));
  bad = good;
  bad.block_size = 1 << 30;
  EXPECT_THAT(message(bad), HasSubstr("max_blocks * block_size is too large"));
  bad = good;
  bad.num_lookahead_tokens = -1;
  EXPECT_THAT(message(bad), HasSubstr("num_lookahead_tokens"));
  bad = good;
  bad.max_blocks = 100;
  bad.num_lookahead_tokens = 36;  // all tokens of the pool
  EXPECT_THAT(message(bad),
              HasSubstr("expected at least 11, got 10 with 1 groups and num_lookahead_tokens 36"));
}

TEST(BlockManagerDeathTest, DiesOnAccessToAnEmptySlot) {
  BlockManager manager = SmallManager();
  EXPECT_DEATH(manager.blocks(kA), "slot 0 holds no sequence");
  EXPECT_DEATH(manager.num_tokens(SlotId(99)), "slot 99 holds no sequence");
}

}  // namespace
}  // namespace reprise
