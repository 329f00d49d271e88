#include "reprise/cache/blocks/block_pool.h"

#include <array>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/ids.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

BlockPool PoolOf(const BlockPoolOptions& options) { return *BlockPool::Create(options); }

BlockId AllocateOne(BlockPool& pool) {
  BlockId block;
  EXPECT_TRUE(pool.Allocate(absl::MakeSpan(&block, 1)).ok());
  return block;
}

TEST(BlockPoolTest, AllocatesDistinctBlocksButNeverTheNullBlock) {
  BlockPool pool = PoolOf({.num_blocks = 5});
  std::array<BlockId, 4> blocks;
  ASSERT_TRUE(pool.Allocate(absl::MakeSpan(blocks)).ok());
  EXPECT_THAT(blocks,
              testing::UnorderedElementsAre(BlockId(1), BlockId(2), BlockId(3), BlockId(4)));
  EXPECT_EQ(pool.num_used(), 4);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, AllocatesAllOrNothing) {
  BlockPool pool = PoolOf({.num_blocks = 5});  // allocatable blocks: 1..4
  std::array<BlockId, 3> first;
  ASSERT_TRUE(pool.Allocate(absl::MakeSpan(first)).ok());

  std::array<BlockId, 2> second = {kNullBlock, kNullBlock};
  absl::Status status = pool.Allocate(absl::MakeSpan(second));  // 4 - 3 < 2
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 are available now, requested 2; retry"));
  EXPECT_THAT(second, Each(kNullBlock));  // untouched
  EXPECT_EQ(pool.num_allocatable(), 1);
}

TEST(BlockPoolTest, RejectsMoreBlocksThanThePoolHas) {
  BlockPool pool = PoolOf({.num_blocks = 5});
  std::array<BlockId, 5> blocks;  // one more than 4
  absl::Status status = pool.Allocate(absl::MakeSpan(blocks));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 4, got 5"));
}

TEST(BlockPoolTest, AllocatingZeroBlocksSucceedsInAFullPool) {
  BlockPool pool = PoolOf({.num_blocks = 2});
  AllocateOne(pool);
  EXPECT_TRUE(pool.Allocate({}).ok());
}

TEST(BlockPoolTest, OnlyAllocateReservedUsesTheReserve) {
  BlockPool pool = PoolOf({.num_blocks = 6, .num_reserved_blocks = 2});  // 3 + 2 allocatable blocks
  std::array<BlockId, 4> four;
  EXPECT_EQ(pool.Allocate(absl::MakeSpan(four)).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(pool.AllocateReserved(absl::MakeSpan(four)).ok());
  EXPECT_EQ(pool.num_allocatable(), 0);  // 1 free, below the reserve: never negative
  EXPECT_EQ(pool.num_allocatable_reserved(), 1);

  BlockId block;
  EXPECT_EQ(pool.Allocate(absl::MakeSpan(&block, 1)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(pool.AllocateReserved(absl::MakeSpan(&block, 1)).ok());
}

TEST(BlockPoolTest, ReleasingASharedBlockKeepsItInUse) {
  BlockPool pool = PoolOf({.num_blocks = 2});
  const BlockId block = AllocateOne(pool);
  pool.Share(block);
  pool.Release(block);
  EXPECT_EQ(pool.ref_count(block), 1);
  EXPECT_EQ(pool.num_allocatable(), 0);
  pool.Release(block);
  EXPECT_EQ(pool.ref_count(block), 0);
  EXPECT_EQ(pool.num_allocatable(), 1);
}

TEST(BlockPoolTest, ReleasedBlockIsReallocated) {
  BlockPool pool = PoolOf({.num_blocks = 2});
  for (int i = 0; i < 3; ++i) {
    const BlockId block = AllocateOne(pool);
    EXPECT_EQ(block, BlockId(1));
    pool.Release(block);
  }
}

TEST(BlockPoolTest, PeakUsedIsTheMaximumOfUsedBlocks) {
  BlockPool pool = PoolOf({.num_blocks = 5});
  EXPECT_EQ(pool.peak_used(), 0);
  std::array<BlockId, 3> blocks;
  ASSERT_TRUE(pool.Allocate(absl::MakeSpan(blocks)).ok());
  for (const BlockId block : blocks) pool.Release(block);
  AllocateOne(pool);
  EXPECT_EQ(pool.num_used(), 1);
  EXPECT_EQ(pool.peak_used(), 3);
}

TEST(BlockPoolTest, Takes16BytesPerBlock) {
  EXPECT_EQ(PoolOf({.num_blocks = 1000}).num_bytes(), 1000 * 16);
}

TEST(BlockPoolContentTest, LastReleaseCachesABlockWithContent) {
  BlockPool pool = PoolOf({.num_blocks = 3});
  const BlockId block = AllocateOne(pool);
  pool.KeepContent(block);
  pool.Share(block);
  pool.Release(block);
  EXPECT_EQ(pool.state(block), BlockState::kUsed);
  pool.Release(block);
  EXPECT_EQ(pool.state(block), BlockState::kCached);
  EXPECT_TRUE(pool.has_content(block));
  EXPECT_EQ(pool.num_allocatable(), 2);  // 1 free + 1 cached
  pool.CheckInvariants();

  pool.Share(block);
  EXPECT_EQ(pool.ref_count(block), 1);
  EXPECT_EQ(pool.num_cached(), 0);
  pool.CheckInvariants();
}

TEST(BlockPoolContentTest, AllocatesFreeBlocksThenCachedBlocksInLruOrder) {
  BlockPool pool = PoolOf({.num_blocks = 5});
  std::array<BlockId, 3> blocks;
  ASSERT_TRUE(pool.Allocate(absl::MakeSpan(blocks)).ok());  // 1 remains
  for (const int i : {1, 0, 2}) {
    pool.KeepContent(blocks[i]);
    pool.Release(blocks[i]);
  }
  pool.Share(blocks[1]);  // used again: now the newest
  pool.Release(blocks[1]);

  std::array<BlockId, 3> fresh;
  ASSERT_TRUE(pool.Allocate(absl::MakeSpan(fresh)).ok());
  EXPECT_THAT(fresh, ElementsAre(BlockId(4), blocks[0], blocks[2]));
  EXPECT_EQ(pool.num_evictions(), 2);
  EXPECT_FALSE(pool.has_content(blocks[0]));
  EXPECT_TRUE(pool.has_content(blocks[1]));
  pool.CheckInvariants();
}

TEST(BlockPoolContentTest, DropContentFreesACachedBlockAndKeepsAUsedBlock) {
  BlockPool pool = PoolOf({.num_blocks = 4});
  const BlockId cached = AllocateOne(pool);
  pool.KeepContent(cached);
  pool.Release(cached);
  const BlockId used = AllocateOne(pool);
  pool.KeepContent(used);
  for (int i = 0; i < 2; ++i) {  // the second call has no effect
    pool.DropContent(cached);
    pool.DropContent(used);
    pool.CheckInvariants();
  }
  EXPECT_EQ(pool.state(cached), BlockState::kFree);
  EXPECT_EQ(pool.state(used), BlockState::kUsed);
  pool.Release(used);
  EXPECT_EQ(pool.state(used), BlockState::kFree);
}

TEST(BlockPoolTest, RejectsOptionsOutOfRange) {
  const auto message = [](const BlockPoolOptions& options) {
    absl::Status status = BlockPool::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({.num_blocks = 1}), HasSubstr("num_blocks"));
  EXPECT_THAT(message({.num_blocks = -7}), HasSubstr("expected at least 2, got -7"));
  EXPECT_THAT(message({.num_blocks = 4, .num_reserved_blocks = 3}),
              HasSubstr("num_reserved_blocks must leave a block to allocate: expected 0 to 2"));
  EXPECT_THAT(message({.num_blocks = 4, .num_reserved_blocks = -1}), HasSubstr("got -1"));
}

TEST(BlockPoolDeathTest, DiesOnReleaseOfAnUnusedBlock) {
  BlockPool pool = PoolOf({.num_blocks = 3});
  const BlockId block = AllocateOne(pool);
  pool.Release(block);
  EXPECT_DEATH(pool.Release(block), "Release of block 1, which is not used");
  EXPECT_DEATH(pool.Share(block), "Share of block 1, which is not used");
  EXPECT_DEATH(pool.Release(kNullBlock), "Release of block 0");
  EXPECT_DEATH(pool.Release(BlockId(3)), "block 3 is not of this pool of 3");
  EXPECT_DEATH(pool.Release(BlockId(-1)), "block -1 is not of this pool");
}

TEST(BlockPoolDeathTest, KeepContentOfAnUnusedBlockDies) {
  BlockPool pool = PoolOf({.num_blocks = 3});
  const BlockId block = AllocateOne(pool);
  pool.Release(block);
  EXPECT_DEATH(pool.KeepContent(block), "KeepContent of block 1, which is not used");
  EXPECT_DEATH(pool.KeepContent(kNullBlock), "KeepContent of block 0");
  EXPECT_DEATH(pool.DropContent(BlockId(3)), "block 3 is not of this pool of 3");
}

}  // namespace
}  // namespace reprise
