// Blocks that wait for a consumer, and blocks whose content is kept: the states besides free and
// used. cache/blocks/block_pool_test.cc has the rest.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/fence.h"
#include "reprise/base/ids.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/fake_fence.h"
#include "reprise/cache/blocks/block_pool.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

// A pool with a fence queue whose fences the test passes.
struct FencedPool {
  explicit FencedPool(const BlockPoolOptions& options) : pool(*BlockPool::Create(options)) {
    queue = AddQueue(fences);
  }

  FenceQueueId AddQueue(std::vector<FakeFence*>& fakes, int num_fences = 3) {
    std::vector<std::unique_ptr<Fence>> owned;
    for (int i = 0; i < num_fences; ++i) {
      auto fence = std::make_unique<FakeFence>();
      fakes.push_back(fence.get());
      owned.push_back(std::move(fence));
    }
    return *pool.AddFenceQueue(std::move(owned));
  }

  BlockId AllocateOne() {
    BlockId block;
    EXPECT_TRUE(pool.Allocate(absl::MakeSpan(&block, 1)).ok());
    return block;
  }

  // A block that is cached.
  BlockId CacheOne() {
    const BlockId block = AllocateOne();
    pool.KeepContent(block);
    pool.Release(block);
    return block;
  }

  bool CanAllocate(int num_blocks = 1) { return pool.CheckAllocatable(num_blocks).ok(); }

  BlockPool pool;
  std::vector<FakeFence*> fences;
  FenceQueueId queue;
};

TEST(BlockPoolContentTest, ABlockWithContentIsCachedByItsLastRelease) {
  FencedPool f({.num_blocks = 3});
  const BlockId block = f.AllocateOne();
  f.pool.KeepContent(block);
  f.pool.Share(block);
  f.pool.Release(block);
  EXPECT_EQ(f.pool.state(block), BlockState::kUsed);
  f.pool.Release(block);
  EXPECT_EQ(f.pool.state(block), BlockState::kCached);
  EXPECT_TRUE(f.pool.has_content(block));
  EXPECT_EQ(f.pool.num_allocatable(), 2);  // 1 free + 1 cached
  f.pool.CheckInvariants();

  f.pool.Share(block);
  EXPECT_EQ(f.pool.ref_count(block), 1);
  EXPECT_EQ(f.pool.num_cached(), 0);
  f.pool.CheckInvariants();
}

TEST(BlockPoolContentTest, FreeBlocksGoBeforeCachedOnesAndThoseOldestFirst) {
  FencedPool f({.num_blocks = 5});
  std::array<BlockId, 3> blocks;
  ASSERT_TRUE(f.pool.Allocate(absl::MakeSpan(blocks)).ok());  // 1 is left
  for (const int i : {1, 0, 2}) {
    f.pool.KeepContent(blocks[i]);
    f.pool.Release(blocks[i]);
  }
  f.pool.Share(blocks[1]);  // used again: now the newest
  f.pool.Release(blocks[1]);

  std::array<BlockId, 3> fresh;
  ASSERT_TRUE(f.pool.Allocate(absl::MakeSpan(fresh)).ok());
  EXPECT_THAT(fresh, ElementsAre(BlockId(4), blocks[0], blocks[2]));
  EXPECT_EQ(f.pool.num_evictions(), 2);
  EXPECT_FALSE(f.pool.has_content(blocks[0]));
  EXPECT_TRUE(f.pool.has_content(blocks[1]));
  f.pool.CheckInvariants();
}

TEST(BlockPoolContentTest, DroppingContentFreesACachedBlockAndKeepsAUsedOne) {
  FencedPool f({.num_blocks = 4});
  const BlockId cached = f.CacheOne();
  const BlockId used = f.AllocateOne();
  f.pool.KeepContent(used);
  for (int i = 0; i < 2; ++i) {  // the second time without effect
    f.pool.DropContent(cached);
    f.pool.DropContent(used);
    f.pool.CheckInvariants();
  }
  EXPECT_EQ(f.pool.state(cached), BlockState::kFree);
  EXPECT_EQ(f.pool.state(used), BlockState::kUsed);
  f.pool.Release(used);
  EXPECT_EQ(f.pool.state(used), BlockState::kFree);
}

TEST(BlockPoolFenceTest, ABlockIsNotHandedOutBeforeItsTicketHasPassed) {
  FencedPool f({.num_blocks = 2});
  const BlockId block = f.AllocateOne();
  f.pool.Release(block, f.pool.Arm(f.queue));
  EXPECT_EQ(f.pool.state(block), BlockState::kFenced);
  EXPECT_EQ(f.pool.num_allocatable(), 0);
  EXPECT_EQ(f.pool.CheckAllocatable(1).code(), absl::StatusCode::kResourceExhausted);
  f.pool.CheckInvariants();

  f.fences[0]->Pass();
  EXPECT_EQ(f.pool.num_allocatable(), 0);  // as of the last poll
  EXPECT_EQ(f.AllocateOne(), block);       // which polls, being short
  f.pool.CheckInvariants();
}

TEST(BlockPoolFenceTest, ABlockThatIsInUseWhenItsTicketPassesStaysInUse) {
  FencedPool f({.num_blocks = 4});
  const BlockId shared = f.AllocateOne();
  f.pool.Share(shared);
  f.pool.Release(shared, f.pool.Arm(f.queue));  // by one of two owners
  const BlockId found = f.AllocateOne();
  f.pool.KeepContent(found);
  f.pool.Release(found, f.pool.Arm(f.queue));
  f.pool.Share(found);  // found again before its ticket passes
  f.fences[0]->Pass();
  f.fences[1]->Pass();
  f.pool.Poll();
  for (const BlockId block : {shared, found}) {
    EXPECT_EQ(f.pool.state(block), BlockState::kUsed);
    EXPECT_EQ(f.pool.ref_count(block), 1);
    EXPECT_FALSE(f.pool.is_awaited(block));
  }
  EXPECT_EQ(f.pool.num_waiting_releases(), 0);
  EXPECT_EQ(f.pool.num_allocatable(), 1);
  f.pool.CheckInvariants();
  f.pool.Release(shared);
  f.pool.Release(found);
  EXPECT_EQ(f.pool.state(shared), BlockState::kFree);
  EXPECT_EQ(f.pool.state(found), BlockState::kCached);
  f.pool.CheckInvariants();
}

TEST(BlockPoolFenceTest, BlocksComeFreeInTheOrderOfTheirTickets) {
  FencedPool f({.num_blocks = 4});
  std::array<BlockId, 3> blocks;
  ASSERT_TRUE(f.pool.Allocate(absl::MakeSpan(blocks)).ok());
  for (const BlockId block : blocks) f.pool.Release(block, f.pool.Arm(f.queue));
  EXPECT_EQ(f.pool.num_waiting_releases(), 3);
  f.fences[1]->Pass();
  f.pool.Poll();
  EXPECT_EQ(f.pool.num_fenced(), 3);
  f.fences[0]->Pass();
  f.pool.Poll();
  EXPECT_EQ(f.pool.num_fenced(), 1);
  EXPECT_EQ(f.pool.state(blocks[2]), BlockState::kFenced);
  f.pool.CheckInvariants();
}

TEST(BlockPoolFenceTest, TheTicketOfAReleaseThatWasNotTheLastCountsToo) {
  FencedPool f({.num_blocks = 2});
  const BlockId block = f.AllocateOne();
  f.pool.Share(block);
  f.pool.Release(block, f.pool.Arm(f.queue));  // swapped out: a copy still reads it
  EXPECT_EQ(f.pool.state(block), BlockState::kUsed);
  f.pool.Release(block);  // the other user has none
  EXPECT_EQ(f.pool.state(block), BlockState::kFenced);
  EXPECT_FALSE(f.CanAllocate());
  f.fences[0]->Pass();
  EXPECT_TRUE(f.CanAllocate());
  f.pool.CheckInvariants();
}

TEST(BlockPoolFenceTest, ABlockWaitsForEveryQueueItWasReleasedUnder) {
  FencedPool f({.num_blocks = 2});
  std::vector<FakeFence*> swap_fences;
  const FenceQueueId swap = f.AddQueue(swap_fences);
  const BlockId block = f.AllocateOne();
  f.pool.Share(block);
  f.pool.Release(block, f.pool.Arm(swap));
  f.pool.Release(block, f.pool.Arm(f.queue));
  f.fences[0]->Pass();
  f.pool.Poll();
  EXPECT_EQ(f.pool.state(block), BlockState::kFenced);
  f.pool.CheckInvariants();
  swap_fences[0]->Pass();
  f.pool.Poll();
  EXPECT_EQ(f.pool.state(block), BlockState::kFree);
  f.pool.CheckInvariants();
}

TEST(BlockPoolFenceTest, ATicketThatHasPassedDoesNotHoldABlock) {
  FencedPool f({.num_blocks = 2});
  const FenceTicket ticket = f.pool.Arm(f.queue);
  f.fences[0]->Pass();
  f.pool.Wait(ticket);
  const BlockId block = f.AllocateOne();
  f.pool.Release(block, ticket);
  EXPECT_EQ(f.pool.state(block), BlockState::kFree);
  const BlockId again = f.AllocateOne();
  f.pool.Release(again, {.queue = f.queue, .number = 0});
  EXPECT_EQ(f.pool.state(again), BlockState::kFree);
}

TEST(BlockPoolFenceTest, FencedContentKeepsItsPlaceInTheOrderOfEviction) {
  FencedPool f({.num_blocks = 4});
  std::vector<FakeFence*> slow_fences;
  const FenceQueueId slow = f.AddQueue(slow_fences);
  std::array<BlockId, 3> blocks;
  ASSERT_TRUE(f.pool.Allocate(absl::MakeSpan(blocks)).ok());
  for (const BlockId block : blocks) f.pool.KeepContent(block);
  f.pool.Release(blocks[0], f.pool.Arm(slow));
  f.pool.Release(blocks[1]);
  f.pool.Release(blocks[2]);
  EXPECT_EQ(f.pool.num_allocatable(), 2);

  EXPECT_EQ(f.AllocateOne(), blocks[1]);  // steps over the oldest, which waits
  f.pool.CheckInvariants();
  slow_fences[0]->Pass();
  f.pool.Poll();
  EXPECT_EQ(f.AllocateOne(), blocks[0]);  // in its old place, before the third
  f.pool.CheckInvariants();
}

TEST(BlockPoolFenceTest, FencedContentThatIsDroppedIsFreeOnceTheTicketPasses) {
  FencedPool f({.num_blocks = 2});
  const BlockId block = f.AllocateOne();
  f.pool.KeepContent(block);
  f.pool.Release(block, f.pool.Arm(f.queue));
  f.pool.DropContent(block);
  EXPECT_EQ(f.pool.state(block), BlockState::kFenced);
  f.pool.CheckInvariants();
  f.fences[0]->Pass();
  f.pool.Poll();
  EXPECT_EQ(f.pool.state(block), BlockState::kFree);
  f.pool.CheckInvariants();
}

TEST(BlockPoolFenceTest, WaitingTakesNoMoreTicketsThanItNeeds) {
  FencedPool f({.num_blocks = 4});
  std::array<BlockId, 3> blocks;
  ASSERT_TRUE(f.pool.Allocate(absl::MakeSpan(blocks)).ok());
  for (const BlockId block : blocks) f.pool.Release(block, f.pool.Arm(f.queue));
  std::thread consumer([&] {
    f.fences[0]->Pass();
    f.fences[1]->Pass();
  });
  EXPECT_TRUE(f.pool.WaitForAllocatable(2).ok());
  consumer.join();
  EXPECT_EQ(f.fences[2]->num_waits(), 0);
  EXPECT_EQ(f.pool.num_fenced(), 1);
  f.pool.CheckInvariants();
}

TEST(BlockPoolFenceTest, WaitingDoesNotBlockWhereItCannotHelp) {
  FencedPool f({.num_blocks = 4});
  const BlockId block = f.AllocateOne();
  f.AllocateOne();  // 1 is free
  EXPECT_EQ(f.pool.WaitForAllocatable(2).code(), absl::StatusCode::kResourceExhausted);
  f.pool.Release(block, f.pool.Arm(f.queue));
  EXPECT_EQ(f.pool.WaitForAllocatable(4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(f.pool.WaitForAllocatable(1).ok());
  f.fences[0]->Pass();
  EXPECT_EQ(f.pool.WaitForAllocatable(3).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(f.pool.num_fenced(), 0);
}

TEST(BlockPoolFenceTest, FencesNeedNotBeAsManyAsTickets) {
  FencedPool f({.num_blocks = 11});  // 3 fences
  std::vector<BlockId> blocks(10);
  ASSERT_TRUE(f.pool.Allocate(absl::MakeSpan(blocks)).ok());
  for (const BlockId block : blocks) f.pool.Release(block, f.pool.Arm(f.queue));
  for (FakeFence* fence : f.fences) fence->Pass();
  f.pool.Poll();
  EXPECT_EQ(f.pool.num_free(), 10);
}

TEST(BlockPoolFenceTest, SteadyReleasesUnderTicketsAllocateNoMemory) {
  FencedPool f({.num_blocks = 9});
  std::array<BlockId, 8> blocks;
  const AllocationCounter allocations;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(f.pool.Allocate(absl::MakeSpan(blocks)).ok());
    const FenceTicket ticket = f.pool.Arm(f.queue);
    for (const BlockId block : blocks) f.pool.Release(block, ticket);
    for (FakeFence* fence : f.fences) fence->Pass();
  }
  EXPECT_EQ(allocations.count(), 0);
}

TEST(BlockPoolFenceTest, TakesTheBytesThatTheHeaderSays) {
  BlockPool pool = *BlockPool::Create({.num_blocks = 1000});
  EXPECT_EQ(pool.num_bytes(), 1000 * 16);
  FencedPool f({.num_blocks = 1000});
  EXPECT_EQ(f.pool.num_bytes(), 1000 * 20 + 16 * 16);  // and room for 16 tickets
}

TEST(BlockPoolFenceTest, AQueueWithTooFewFencesIsRefused) {
  BlockPool pool = *BlockPool::Create({.num_blocks = 4});
  EXPECT_EQ(pool.AddFenceQueue({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(BlockPoolFenceDeathTest, WrongCallsAreBrokenInvariants) {
  FencedPool f({.num_blocks = 3});
  const BlockId block = f.AllocateOne();
  EXPECT_DEATH(f.pool.Release(block, {.queue = FenceQueueId(1), .number = 0}),
               "queue 1 is not of this pool of 1");
  EXPECT_DEATH(f.pool.Release(block, {.queue = f.queue, .number = 1}), "1 was never given");
  EXPECT_DEATH(f.pool.Arm(FenceQueueId(-1)), "queue -1 is not of this pool");
  EXPECT_DEATH(f.pool.Wait({.queue = FenceQueueId(7), .number = 0}), "queue 7");
  f.pool.Release(block, f.pool.Arm(f.queue));
  EXPECT_DEATH(f.pool.Release(block), "Release of block 1, which is not used");
  EXPECT_DEATH(f.pool.Share(block), "Share of block 1, which is not used");
  EXPECT_DEATH(f.pool.KeepContent(block), "KeepContent of block 1, which is not used");
  EXPECT_DEATH(f.pool.KeepContent(kNullBlock), "KeepContent of block 0");
  EXPECT_DEATH(f.pool.DropContent(BlockId(3)), "block 3 is not of this pool of 3");
}

}  // namespace
}  // namespace reprise
