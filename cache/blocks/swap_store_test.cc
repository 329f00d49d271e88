#include "reprise/cache/blocks/swap_store.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/fake_fence.h"
#include "reprise/cache/testing/delayed_stream.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr SlotId kA(0), kB(1), kC(2);
constexpr SequenceId kOne(101), kTwo(102);

std::vector<std::unique_ptr<Fence>> FencesOf(DelayedStream& stream) {
  std::vector<std::unique_ptr<Fence>> fences;
  for (int i = 0; i < 3; ++i) fences.push_back(stream.MakeFence());
  return fences;
}

class SwapStoreTest : public testing::Test {
 protected:
  // 9 allocatable device blocks of 4 tokens.
  explicit SwapStoreTest(BlockManagerOptions options = {}, int num_host_blocks = 8) {
    options.num_blocks = 10;
    options.block_size = 4;
    options.num_slots = 3;
    options.max_blocks = 6;
    manager_ = std::make_unique<BlockManager>(*BlockManager::Create(options));
    store_ = std::make_unique<SwapStore>(*SwapStore::Create({.num_host_blocks = num_host_blocks},
                                                            manager_.get(), FencesOf(stream_)));
  }

  void AddCommitted(SlotId slot, int num_tokens) {
    ASSERT_TRUE(manager_->Add(slot, num_tokens).ok());
    ASSERT_TRUE(manager_->CommitUnknown(slot, num_tokens).ok());
  }

  // The plan's copies are in the stream but have not run.
  void Launch() {
    stream_.Submit([] {});
    store_->Launched();
    Check();
  }

  void Check() {
    manager_->CheckInvariants();
    store_->CheckInvariants();
  }

  DelayedStream stream_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<SwapStore> store_;
};

TEST_F(SwapStoreTest, SequenceIsSwappedOutAndInToAnotherSlot) {
  AddCommitted(kA, 6);  // device blocks 1, 2
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  EXPECT_EQ(store_->state(kOne), SwapState::kPlanned);
  EXPECT_THAT(store_->copies_out(),
              ElementsAre(BlockCopy{.src = 1, .dst = 1}, BlockCopy{.src = 2, .dst = 2}));
  EXPECT_TRUE(manager_->contains(kA));  // until the copies are launched
  Check();
  Launch();
  EXPECT_FALSE(manager_->contains(kA));
  EXPECT_THAT(store_->copies_out(), IsEmpty());
  EXPECT_EQ(store_->state(kOne), SwapState::kSwappingOut);
  EXPECT_EQ(store_->num_tokens(kOne), 6);
  EXPECT_THAT(store_->blocks(kOne), ElementsAre(HostBlockId(1), HostBlockId(2)));
  stream_.RunAll();
  EXPECT_EQ(store_->state(kOne), SwapState::kStored);

  ASSERT_TRUE(store_->PlanIn(kOne, kB).ok());
  EXPECT_EQ(store_->state(kOne), SwapState::kSwappingIn);
  EXPECT_EQ(manager_->num_tokens(kB), 6);
  EXPECT_EQ(manager_->num_committed(kB), 6);
  const absl::Span<const BlockId> blocks = manager_->blocks(kB);
  EXPECT_THAT(store_->copies_in(), ElementsAre(BlockCopy{.src = 1, .dst = blocks[0].value()},
                                               BlockCopy{.src = 2, .dst = blocks[1].value()}));
  Launch();
  EXPECT_EQ(store_->state(kOne), std::nullopt);
}

TEST_F(SwapStoreTest, DeviceBlocksAreNotReallocatedBeforeTheyAreRead) {
  AddCommitted(kA, 24);  // 6 of 9
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  EXPECT_EQ(store_->num_held(), 6);
  EXPECT_EQ(manager_->Add(kB, 16).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(manager_->Add(kB, 12).ok());
  stream_.RunAll();
  EXPECT_EQ(store_->num_held(), 6);  // as of the last poll
  EXPECT_EQ(manager_->Add(kC, 24).code(), absl::StatusCode::kResourceExhausted);
  store_->Poll();
  EXPECT_EQ(store_->num_held(), 0);
  EXPECT_TRUE(manager_->Add(kC, 24).ok());
  Check();
}

TEST_F(SwapStoreTest, HostBlocksAreNotReallocatedBeforeTheyAreRead) {
  AddCommitted(kA, 24);  // 6 of 7 host blocks
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  stream_.RunAll();
  ASSERT_TRUE(store_->PlanIn(kOne, kB).ok());
  Launch();
  const absl::Status refused = store_->PlanOut(kB, kTwo);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_FALSE(store_->state(kTwo).has_value());
  stream_.RunAll();
  EXPECT_TRUE(store_->PlanOut(kB, kTwo).ok());
  Check();
}

TEST_F(SwapStoreTest, TokensInFlightAreNotStored) {
  AddCommitted(kA, 5);
  ASSERT_TRUE(manager_->Append(kA, 7).ok());  // 12 tokens, 3 blocks
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  EXPECT_THAT(store_->copies_out(), SizeIs(2));
  Launch();
  ASSERT_TRUE(store_->PlanIn(kOne, kA).ok());
  EXPECT_EQ(manager_->num_tokens(kA), 5);
  Check();
}

TEST_F(SwapStoreTest, ForkContinuesWhileItsParentIsSwappedOut) {
  AddCommitted(kA, 6);
  ASSERT_TRUE(manager_->Fork(kA, kB).ok());
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  // The block is still being read: the other sequence writes to a copy, although no other sequence
  // uses the block.
  ASSERT_TRUE(manager_->Append(kB, 1).ok());
  EXPECT_TRUE(manager_->has_copies());
  manager_->TakeCopies();
  stream_.RunAll();
  ASSERT_TRUE(store_->PlanIn(kOne, kA).ok());
  Launch();
  EXPECT_EQ(manager_->num_tokens(kA), 6);
  EXPECT_EQ(manager_->num_tokens(kB), 7);
}

TEST_F(SwapStoreTest, DropReleasesHostBlocks) {
  AddCommitted(kA, 24);
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  EXPECT_EQ(store_->Drop(kOne).code(), absl::StatusCode::kFailedPrecondition);
  Launch();
  ASSERT_TRUE(store_->Drop(kOne).ok());
  EXPECT_EQ(store_->host_pool().num_used(), 6);  // still being written
  stream_.RunAll();
  store_->Poll();
  EXPECT_EQ(store_->host_pool().num_free(), 7);
  EXPECT_EQ(manager_->pool().num_used(), 0);
  Check();
}

TEST_F(SwapStoreTest, RejectsPlanInWithoutBlocksAndKeepsTheSequence) {
  AddCommitted(kA, 24);
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  stream_.RunAll();
  store_->Poll();
  AddCommitted(kB, 20);  // 5 of 9: 4 remain
  EXPECT_EQ(store_->PlanIn(kOne, kA).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store_->PlanIn(kOne, kB).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store_->state(kOne), SwapState::kStored);
  EXPECT_THAT(store_->copies_in(), IsEmpty());
  ASSERT_TRUE(manager_->Free(kB).ok());
  EXPECT_TRUE(store_->PlanIn(kOne, kA).ok());
  Check();
}

TEST_F(SwapStoreTest, RejectsInvalidPlans) {
  AddCommitted(kA, 4);
  AddCommitted(kB, 4);
  EXPECT_EQ(store_->PlanOut(kC, kOne).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->PlanOut(SlotId(7), kOne).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->PlanOut(SlotId(-1), kOne).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->PlanIn(kOne, kC).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Drop(kOne).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  EXPECT_EQ(store_->PlanOut(kB, kOne).code(), absl::StatusCode::kAlreadyExists);
  const absl::Status again = store_->PlanOut(kA, kTwo);
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()),
              HasSubstr("slot 0 is already planned to be swapped out"));
  const absl::Status too_early = store_->PlanIn(kOne, kC);
  EXPECT_EQ(too_early.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(too_early.message()), HasSubstr("sequence 101 has not left slot 0"));
  Launch();
  ASSERT_TRUE(store_->PlanIn(kOne, kC).ok());
  const absl::Status twice = store_->PlanIn(kOne, kA);
  EXPECT_EQ(twice.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(twice.message()),
              HasSubstr("sequence 101 is planned to be swapped in to slot 2 already"));
  EXPECT_EQ(store_->Drop(kOne).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->PlanOut(kB, kOne).code(), absl::StatusCode::kAlreadyExists);
  Check();
}

TEST_F(SwapStoreTest, RejectsPlanOutOfASequenceThatIsSwappingIn) {
  AddCommitted(kA, 4);
  const SavedSequence saved = manager_->Save(kA);
  ASSERT_TRUE(manager_->Restore(kB, saved).ok());
  const absl::Status arriving = store_->PlanOut(kB, kOne);
  EXPECT_EQ(arriving.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(arriving.message()), HasSubstr("slot 1 must not be swapping in"));
  EXPECT_EQ(store_->state(kOne), std::nullopt);
  Check();
  manager_->ConfirmRestored(kB);
  EXPECT_TRUE(store_->PlanOut(kB, kOne).ok());
  Launch();
  Check();
}

TEST_F(SwapStoreTest, RejectsSwapOutAfterSwapInInAPlan) {
  AddCommitted(kA, 4);
  AddCommitted(kB, 4);
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  ASSERT_TRUE(store_->PlanIn(kOne, kA).ok());
  // The block would be read before its swap-in.
  EXPECT_EQ(store_->PlanOut(kA, kTwo).code(), absl::StatusCode::kFailedPrecondition);
  Launch();
  EXPECT_TRUE(store_->PlanOut(kA, kTwo).ok());
}

TEST_F(SwapStoreTest, RejectsSwapOutWithPendingForkCopies) {
  AddCommitted(kA, 6);
  ASSERT_TRUE(manager_->Fork(kA, kB).ok());
  ASSERT_TRUE(manager_->Append(kB, 1).ok());
  EXPECT_EQ(store_->PlanOut(kB, kOne).code(), absl::StatusCode::kFailedPrecondition);
  manager_->TakeCopies();
  EXPECT_TRUE(store_->PlanOut(kB, kOne).ok());
}

TEST_F(SwapStoreTest, AbandonedPlanLeavesSequencesUnmoved) {
  AddCommitted(kA, 8);
  AddCommitted(kB, 6);
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  stream_.RunAll();
  // The last swap-out, and the swap-in after it, could not be launched.
  ASSERT_TRUE(store_->PlanOut(kB, kTwo).ok());
  ASSERT_TRUE(store_->PlanIn(kOne, kC).ok());
  ASSERT_TRUE(manager_->Append(kC, 5).ok());
  store_->Abandon();
  Check();
  EXPECT_THAT(store_->copies_out(), IsEmpty());
  EXPECT_THAT(store_->copies_in(), IsEmpty());
  EXPECT_EQ(store_->state(kTwo), std::nullopt);
  EXPECT_EQ(store_->state(kOne), SwapState::kStored);
  EXPECT_EQ(store_->num_tokens(kOne), 8);
  EXPECT_FALSE(manager_->contains(kC));
  EXPECT_EQ(manager_->num_tokens(kB), 6);
  ASSERT_TRUE(manager_->Append(kB, 1).ok());
  ASSERT_TRUE(manager_->Free(kB).ok());
  store_->Poll();
  EXPECT_EQ(manager_->pool().num_free(), 9);
  EXPECT_EQ(store_->host_pool().num_free(), 5);  // 7 minus the two blocks of kOne
  // Repeats the plan.
  ASSERT_TRUE(store_->PlanIn(kOne, kC).ok());
  EXPECT_THAT(store_->copies_in(), SizeIs(2));
  Launch();
  EXPECT_EQ(manager_->num_tokens(kC), 8);
  EXPECT_TRUE(manager_->Free(kC).ok());
  Check();
}

TEST_F(SwapStoreTest, AbandonedPlanHoldsBlocksThatItsCopiesWrite) {
  AddCommitted(kA, 24);  // 6 of 9 on the device, of 7 on the host
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  stream_.Submit([] {});  // launched, but the launch after it failed
  store_->Abandon();
  EXPECT_EQ(store_->PlanOut(kA, kTwo).code(), absl::StatusCode::kResourceExhausted);
  stream_.RunAll();
  ASSERT_TRUE(store_->PlanOut(kA, kTwo).ok());
  Launch();
  stream_.RunAll();
  ASSERT_TRUE(store_->PlanIn(kTwo, kB).ok());
  stream_.Submit([] {});
  store_->Abandon();
  EXPECT_FALSE(manager_->contains(kB));
  EXPECT_EQ(store_->num_held(), 6);
  EXPECT_EQ(manager_->Add(kC, 16).code(), absl::StatusCode::kResourceExhausted);
  Check();
  stream_.RunAll();
  store_->Poll();
  EXPECT_TRUE(manager_->Add(kC, 16).ok());
  Check();
}

// The copy of the first swap-in plan has not run when the sequence is planned in again.
TEST_F(SwapStoreTest, RestoreAbandonedTwiceHoldsTheBlocksOfBothCopies) {
  AddCommitted(kA, 12);  // 3 of 9
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  stream_.RunAll();
  for (const int num_held : {3, 6}) {
    ASSERT_TRUE(store_->PlanIn(kOne, kA).ok());
    ASSERT_TRUE(manager_->Append(kA, 4).ok());  // a block that is not written by a copy
    stream_.Submit([] {});
    store_->Abandon();
    Check();
    EXPECT_EQ(store_->num_held(), num_held);
    EXPECT_EQ(manager_->pool().num_used(), num_held);
  }
  EXPECT_TRUE(store_->PlanIn(kOne, kA).ok());  // the last 3
  EXPECT_EQ(manager_->Add(kB, 1).code(), absl::StatusCode::kResourceExhausted);
  stream_.RunOldest();
  store_->Poll();
  EXPECT_EQ(store_->num_held(), 3);
  EXPECT_TRUE(manager_->Add(kB, 12).ok());
  Check();
}

TEST_F(SwapStoreTest, EmptyPlanArmsNoFence) {
  std::vector<std::unique_ptr<Fence>> fences;
  fences.push_back(std::make_unique<FakeFence>());
  fences.push_back(std::make_unique<FakeFence>());
  const auto* first = static_cast<const FakeFence*>(fences[0].get());
  SwapStore store = *SwapStore::Create({.num_host_blocks = 8}, manager_.get(), std::move(fences));
  store.Abandon();
  store.Launched();
  EXPECT_EQ(first->num_armings(), 0);
  AddCommitted(kA, 4);
  ASSERT_TRUE(store.PlanOut(kA, kOne).ok());
  store.Launched();
  EXPECT_EQ(first->num_armings(), 1);
}

// As on the CPU.
TEST_F(SwapStoreTest, CopiesThatCompleteBeforeLaunchedHoldNoBlocks) {
  AddCommitted(kA, 12);
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  stream_.Submit([] {});
  stream_.RunAll();
  EXPECT_EQ(manager_->pool().num_used(), 3);
  store_->Launched();
  EXPECT_EQ(store_->num_held(), 0);
  EXPECT_EQ(manager_->pool().num_free(), 9);
  EXPECT_EQ(store_->state(kOne), SwapState::kStored);
  ASSERT_TRUE(store_->Drop(kOne).ok());
  EXPECT_EQ(store_->host_pool().num_free(), 7);
  Check();
}

TEST_F(SwapStoreTest, EventDuringPlanningReleasesOnlyEarlierBlocks) {
  AddCommitted(kA, 8);
  AddCommitted(kB, 12);
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  ASSERT_TRUE(store_->PlanOut(kB, kTwo).ok());
  stream_.RunAll();  // the copies of kOne end
  EXPECT_EQ(store_->num_held(), 2);
  Launch();
  EXPECT_EQ(store_->num_held(), 3);
  EXPECT_EQ(manager_->pool().num_used(), 3);
  EXPECT_EQ(store_->state(kOne), SwapState::kStored);
  EXPECT_EQ(store_->state(kTwo), SwapState::kSwappingOut);
}

TEST_F(SwapStoreTest, BlockOfAPendingCopyStaysHeldAfterTheStoreEnds) {
  AddCommitted(kA, 24);  // 6 of 9
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  AddCommitted(kB, 4);
  ASSERT_TRUE(store_->PlanOut(kB, kTwo).ok());  // is never launched
  store_.reset();
  stream_.RunAll();
  EXPECT_EQ(manager_->Add(kC, 12).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(manager_->Free(kB).ok());
  EXPECT_EQ(manager_->pool().num_used(), 7);
  EXPECT_EQ(manager_->Add(kC, 12).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(manager_->Add(kC, 8).ok());
  manager_->CheckInvariants();
}

// Fewer fences than plans in flight: a block may be held for longer, never shorter.
TEST_F(SwapStoreTest, MorePlansThanFencesAreAllowed) {
  for (int i = 0; i < 5; ++i) {  // 3 fences
    AddCommitted(kA, 4);
    ASSERT_TRUE(store_->PlanOut(kA, SequenceId(i)).ok());
    Launch();
    EXPECT_EQ(store_->num_held(), i + 1);
  }
  for (int i = 0; i < 5; ++i) {
    stream_.RunOldest();
    store_->Poll();
    EXPECT_GE(store_->num_held(), 4 - i);
    Check();
  }
  EXPECT_EQ(store_->num_held(), 0);
}

TEST_F(SwapStoreTest, PlanReleasesTheBlocksOfCompletedCopies) {
  AddCommitted(kA, 24);  // 6 of 9
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  EXPECT_EQ(store_->PlanIn(kOne, kB).code(), absl::StatusCode::kResourceExhausted);
  stream_.RunAll();
  EXPECT_TRUE(store_->PlanIn(kOne, kB).ok());
  EXPECT_EQ(store_->num_held(), 0);
  Check();
}

// Block 2 is the only block that could become free, and a copy reads it. After the copy it is free;
// block 1 still belongs to the fork.
TEST_F(SwapStoreTest, SharedBlockStaysInUseAfterTheSwapOutOfItsFork) {
  AddCommitted(kA, 8);  // blocks 1, 2
  ASSERT_TRUE(manager_->Fork(kA, kB).ok());
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  EXPECT_EQ(manager_->pool().ref_count(BlockId(1)), 2);
  ASSERT_TRUE(manager_->Truncate(kB, 4).ok());  // only the copy uses block 2
  EXPECT_EQ(manager_->pool().state(BlockId(2)), BlockState::kUsed);
  ASSERT_TRUE(manager_->Add(kC, 24).ok());  // 6
  EXPECT_EQ(manager_->Append(kB, 5).code(), absl::StatusCode::kResourceExhausted);
  stream_.RunAll();
  store_->Poll();
  EXPECT_EQ(manager_->pool().ref_count(BlockId(1)), 1);
  EXPECT_TRUE(manager_->Append(kB, 5).ok());
  Check();
}

TEST_F(SwapStoreTest, BlockIsHeldUntilBothCopiesComplete) {
  AddCommitted(kA, 4);  // block 1
  ASSERT_TRUE(manager_->Fork(kA, kB).ok());
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  ASSERT_TRUE(store_->PlanOut(kB, kTwo).ok());
  Launch();
  EXPECT_EQ(manager_->num_holds(BlockId(1)), 2);
  stream_.RunOldest();
  store_->Poll();
  EXPECT_EQ(manager_->num_holds(BlockId(1)), 1);
  Check();
  stream_.RunOldest();
  store_->Poll();
  EXPECT_EQ(manager_->pool().state(BlockId(1)), BlockState::kFree);
  Check();
}

TEST_F(SwapStoreTest, RejectsInvalidOptions) {
  const auto message = [&](int num_host_blocks, int num_fences) {
    std::vector<std::unique_ptr<Fence>> fences = FencesOf(stream_);
    fences.resize(num_fences);
    return std::string(
        SwapStore::Create({.num_host_blocks = num_host_blocks}, manager_.get(), std::move(fences))
            .status()
            .message());
  };
  EXPECT_THAT(message(1, 3), HasSubstr("num_blocks"));
  EXPECT_THAT(message(4, 1), HasSubstr("fences"));
  EXPECT_EQ(SwapStore::Create({.num_host_blocks = 4}, nullptr, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

class SwapStoreGroupsTest : public SwapStoreTest {
 protected:
  SwapStoreGroupsTest()
      : SwapStoreTest({.groups = {{}, {.retention = KvRetention::kSlidingWindow, .span = 4}},
                       .prefix_reuse = PrefixReuse::kOn}) {}
};

TEST_F(SwapStoreGroupsTest, OnlyBlocksThatAreStillNeededAreCopied) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  ASSERT_TRUE(manager_->Add(kA, {.tokens = tokens}).ok());
  ASSERT_TRUE(manager_->Commit(kA, tokens).ok());
  // All 3 blocks of the full group and 2 of the window: token 9 attends to positions 6 to 8.
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  EXPECT_THAT(store_->copies_out(), SizeIs(5));
  Launch();
  stream_.RunAll();
  ASSERT_TRUE(store_->PlanIn(kOne, kB).ok());
  EXPECT_EQ(manager_->first_column(kB, 1), 1);
  EXPECT_THAT(manager_->blocks(kB, 0), SizeIs(3));
  Launch();
  // Other sequences find the content that was swapped in.
  EXPECT_EQ(manager_->Add(kC, {.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 0}})->num_tokens, 8);
  Check();
}

TEST_F(SwapStoreGroupsTest, ContentForgottenBeforeASwapIsNotFoundAfterIt) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  ASSERT_TRUE(manager_->Add(kA, {.tokens = tokens}).ok());
  ASSERT_TRUE(manager_->Commit(kA, tokens).ok());
  manager_->ForgetPrefixes();
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  stream_.RunAll();
  ASSERT_TRUE(store_->PlanIn(kOne, kB).ok());
  Launch();
  ASSERT_TRUE(manager_->Free(kB).ok());
  EXPECT_EQ(manager_->Add(kC, {.tokens = tokens})->num_tokens, 0);
  Check();
}

TEST_F(SwapStoreGroupsTest, ContentForgottenWhileSwappedOutIsNotFoundLater) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  ASSERT_TRUE(manager_->Add(kA, {.tokens = tokens}).ok());
  ASSERT_TRUE(manager_->Commit(kA, tokens).ok());
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  stream_.RunAll();
  manager_->ForgetPrefixes();  // new weights, for example
  ASSERT_TRUE(store_->PlanIn(kOne, kB).ok());
  Launch();
  EXPECT_EQ(manager_->Add(kC, {.tokens = {1, 2, 3, 4, 5}})->num_tokens, 0);
  ASSERT_TRUE(manager_->Free(kC).ok());
  // Tokens computed later are not found either, because they follow forgotten content.
  ASSERT_TRUE(manager_->Append(kB, 3).ok());
  ASSERT_TRUE(manager_->Commit(kB, {10, 11, 12}).ok());
  EXPECT_EQ(manager_->prefix_cache().index().num_indexed(), 0);
  Check();
}

class SwapStorePrefixTest : public SwapStoreTest {
 protected:
  SwapStorePrefixTest() : SwapStoreTest({.prefix_reuse = PrefixReuse::kOn}) {}

  void AddPrompt(SlotId slot, const std::vector<int32_t>& tokens) {
    ASSERT_TRUE(manager_->Add(slot, {.tokens = tokens}).ok());
    ASSERT_TRUE(manager_->Commit(slot, tokens).ok());
  }
};

TEST_F(SwapStorePrefixTest, PromptSharesBlocksThatACopyStillReads) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  AddPrompt(kA, tokens);  // blocks 1, 2, 3
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  EXPECT_EQ(manager_->Add(kB, {.tokens = tokens})->num_tokens, 8);
  EXPECT_EQ(manager_->pool().ref_count(BlockId(2)), 2);
  Check();
  stream_.RunAll();
  store_->Poll();
  EXPECT_EQ(manager_->pool().ref_count(BlockId(2)), 1);
  EXPECT_EQ(manager_->pool().state(BlockId(3)), BlockState::kFree);
  ASSERT_TRUE(manager_->Free(kB).ok());
  EXPECT_EQ(manager_->pool().num_cached(), 2);
  Check();
}

TEST_F(SwapStorePrefixTest, BlocksOfACompletedCopyAreEvictedChildrenFirst) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
  AddPrompt(kA, tokens);  // blocks 1 to 4
  ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
  Launch();
  AddPrompt(kB, {51, 52, 53, 54});
  ASSERT_TRUE(manager_->Free(kB).ok());
  stream_.RunAll();
  store_->Poll();
  EXPECT_EQ(manager_->pool().num_cached(), 4);
  EXPECT_EQ(manager_->pool().num_free(), 5);
  // The other sequence released its block before the copy completed.
  ASSERT_TRUE(manager_->Add(kC, 24).ok());
  EXPECT_EQ(manager_->Lookup(kA, {.tokens = {51, 52, 53, 54, 55}})->num_tokens, 0);
  EXPECT_EQ(manager_->Lookup(kA, {.tokens = tokens})->num_tokens, 12);
  ASSERT_TRUE(manager_->Add(kB, 0).ok());
  for (const int num_left : {8, 4, 0}) {
    ASSERT_TRUE(manager_->Append(kB, 4).ok());
    EXPECT_EQ(manager_->Lookup(kA, {.tokens = tokens})->num_tokens, num_left);
  }
  Check();
}

// Prompts may also hit the first tokens of a block, which is copied before the next step.
class SwapStorePartialHitsTest : public SwapStoreTest {
 protected:
  SwapStorePartialHitsTest()
      : SwapStoreTest({.prefix_reuse = PrefixReuse::kOn,
                       .prefix_tokens = PrefixTokens::kStored,
                       .partial_hits = PartialHits::kCopied}) {}

  // Sequence kOne, of tokens 1 to 9, is planned to be swapped in to kB. The device holds no other
  // copy of its content.
  void PlanIn() {
    const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    ASSERT_TRUE(manager_->Add(kA, {.tokens = tokens}).ok());
    ASSERT_TRUE(manager_->Commit(kA, tokens).ok());
    ASSERT_TRUE(store_->PlanOut(kA, kOne).ok());
    Launch();
    stream_.RunAll();
    store_->Poll();
    ASSERT_TRUE(manager_->Add(kA, 24).ok());
    ASSERT_TRUE(manager_->Add(kC, 12).ok());
    ASSERT_TRUE(manager_->Free(kA).ok());
    ASSERT_TRUE(manager_->Free(kC).ok());
    ASSERT_TRUE(store_->PlanIn(kOne, kB).ok());
    Check();
  }
};

TEST_F(SwapStorePartialHitsTest, SwappedInContentIsFoundAfterLaunched) {
  PlanIn();
  // A copy for this prompt, launched with the next step, would read unfilled blocks.
  EXPECT_EQ(manager_->Add(kA, {.tokens = {1, 2, 3, 4, 5, 6, 0}})->num_tokens, 0);
  EXPECT_FALSE(manager_->has_copies());
  ASSERT_TRUE(manager_->Free(kA).ok());
  Launch();
  EXPECT_EQ(manager_->Add(kA, {.tokens = {1, 2, 3, 4, 5, 6, 0}})->num_tokens, 6);
  EXPECT_THAT(manager_->TakeCopies(),
              ElementsAre(BlockCopy{.src = manager_->blocks(kB)[1].value(),
                                    .dst = manager_->blocks(kA)[1].value()}));
  Check();
}

TEST_F(SwapStorePartialHitsTest, SwappedInSequenceCanBeForkedAfterLaunched) {
  PlanIn();
  const absl::Status refused = manager_->Fork(kB, kC);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("slot 1 must not be swapping in"));
  EXPECT_FALSE(manager_->contains(kC));
  Launch();
  EXPECT_TRUE(manager_->Fork(kB, kC).ok());
  Check();
}

TEST_F(SwapStorePartialHitsTest, DestinationBlocksAreNotReleasedBeforeLaunched) {
  PlanIn();
  const std::vector<BlockCopy> copies(store_->copies_in().begin(), store_->copies_in().end());
  EXPECT_EQ(manager_->Free(kB).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(manager_->Truncate(kB, 3).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(manager_->Append(kB, 1).ok());  // the next step's tokens may be allocated
  EXPECT_EQ(manager_->Commit(kB, {10}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(manager_->CommitUnknown(kB, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(manager_->CommitEncoder(kB).code(), absl::StatusCode::kFailedPrecondition);
  for (const BlockCopy& copy : copies) {
    EXPECT_EQ(manager_->pool().ref_count(BlockId(copy.dst)), 1);
  }
  Launch();
  EXPECT_TRUE(manager_->Commit(kB, {10}).ok());
  EXPECT_TRUE(manager_->Truncate(kB, 3).ok());
  EXPECT_TRUE(manager_->Free(kB).ok());
  Check();
}

}  // namespace
}  // namespace reprise
