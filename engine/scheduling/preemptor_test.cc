// Victims and swaps over a block manager, without a scheduler.

#include "reprise/engine/scheduling/preemptor.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/testing/waiting_requests.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 6 blocks of 2 tokens, in the cache and on the host. Each sequence has 5 known tokens, 4 of them
// committed in 2 blocks: three sequences fill the cache.
class PreemptorTest : public ::testing::Test {
 protected:
  explicit PreemptorTest(PrefixReuse prefix_reuse = PrefixReuse::kOff)
      : blocks_(MakeBlocks(shape_, prefix_reuse)) {
    batch_.Begin();
  }

  std::unique_ptr<Preemptor> Make(PreemptionMode mode = PreemptionMode::kSwap) {
    SchedulerPolicy policy = SmallPolicy();
    policy.preemption = mode;
    policy.preemption_costs = costs_;
    auto preemptor = Preemptor::Create(shape_, policy, &blocks_, &limits_, &table_);
    EXPECT_TRUE(preemptor.ok()) << preemptor.status();
    return *std::move(preemptor);
  }

  SequenceState& Run(int priority = 0) {
    return RunRequest(table_, blocks_, {.prompt = {1, 2, 3, 4, 5}, .priority = priority});
  }

  // Ends a running sequence, as a scheduler does.
  void End(SequenceState& sequence) {
    ASSERT_TRUE(blocks_.Free(*sequence.slot).ok());
    table_.Vacate(sequence);
    table_.Finish(sequence);
    table_.ForgetIfDone(*sequence.added);
  }

  // The swaps and leaves of the batch, which gets a row of `sequence`.
  const ScheduledBatch& Finish(SequenceState& sequence) {
    batch_.AddRow(BatchRowKind::kDecode, {.slot = *sequence.slot}, {.sequence = &sequence});
    return batch_.Finish({}, {});
  }

  int64_t num_free() const { return blocks_.pool().num_allocatable(); }

  PreemptionCosts costs_ = {.us_per_prompt_token = 100,
                            .num_hidden_tokens = 0,
                            .out_gb_per_s = 1,
                            .in_gb_per_s = 1,
                            .us_per_swap = 10};
  RunnerShape shape_ = {.max_num_seqs = 3,
                        .max_num_tokens = 16,
                        .max_seq_len = 40,
                        .num_blocks = 7,
                        .block_size = 2,
                        .num_swap_blocks = 7,
                        .bytes_per_block = 1000};
  BlockManager blocks_;
  CacheLimits limits_{shape_, blocks_};
  SequenceTable table_{3};
  BatchInProgress batch_{shape_, SmallPolicy()};
};

TEST_F(PreemptorTest, PreemptsNoSequenceWhileBlocksAreFree) {
  auto preemptor = Make();
  SequenceState& first = Run();
  Run();
  EXPECT_TRUE(preemptor->MakeRoom(first, 4, 0, batch_)) << "it has room for 4 tokens";
  EXPECT_EQ(num_free(), 2);
  EXPECT_TRUE(preemptor->MakeRoom(first, 8, 0, batch_));
  EXPECT_EQ(blocks_.num_tokens(*first.slot), 8);
  EXPECT_EQ(num_free(), 0);
  EXPECT_EQ(preemptor->num_preemptions(), 0);
  preemptor->CheckInvariants();
}

TEST_F(PreemptorTest, PreemptsTheLastAdmittedSequence) {
  auto preemptor = Make(PreemptionMode::kRecompute);
  SequenceState& first = Run();
  SequenceState& second = Run();
  SequenceState& third = Run();
  EXPECT_TRUE(preemptor->MakeRoom(first, 5, 0, batch_));
  EXPECT_EQ(num_free(), 1) << "two blocks were freed, one was taken";
  EXPECT_THAT(table_.running(), ElementsAre(&first, &second));
  EXPECT_THAT(table_.waiting(), ElementsAre(&third));
  EXPECT_FALSE(third.stored_as.has_value());
  EXPECT_EQ(preemptor->num_preemptions(), 1);
  EXPECT_EQ(preemptor->swap_statistics().num_swap_outs, 0);
  EXPECT_THAT(Finish(first).leaves, ElementsAre(SlotId(2)));
  preemptor->CheckInvariants();
}

TEST_F(PreemptorTest, PreemptsSequencesByAscendingPriorityUntilBlocksSuffice) {
  auto preemptor = Make(PreemptionMode::kRecompute);
  SequenceState& low = Run(/*priority=*/-1);
  SequenceState& middle = Run();
  SequenceState& high = Run(/*priority=*/5);
  EXPECT_TRUE(preemptor->MakeRoom(high, 9, 0, batch_));  // 3 more blocks
  EXPECT_THAT(table_.running(), ElementsAre(&high));
  EXPECT_THAT(table_.waiting(), ElementsAre(&middle, &low));
  EXPECT_EQ(preemptor->num_preemptions(), 2);
  EXPECT_THAT(Finish(high).leaves, ElementsAre(SlotId(0), SlotId(1))) << "the lowest first";
}

TEST_F(PreemptorTest, LastSequencePreemptsItself) {
  auto preemptor = Make(PreemptionMode::kRecompute);
  SequenceState& first = Run();
  SequenceState& second = Run();
  SequenceState& third = Run();
  EXPECT_FALSE(preemptor->MakeRoom(third, 5, 0, batch_));
  EXPECT_THAT(table_.running(), ElementsAre(&first, &second));
  EXPECT_THAT(table_.waiting(), ElementsAre(&third));
  EXPECT_FALSE(batch_.lacks_blocks());
}

TEST_F(PreemptorTest, DiesIfTheOnlySequenceNeedsMoreThanThePool) {
  auto preemptor = Make();
  SequenceState& only = Run();
  EXPECT_TRUE(preemptor->MakeRoom(only, 12, 1, batch_));
  EXPECT_DEATH(preemptor->MakeRoom(only, 13, 1, batch_), "13 tokens of one sequence");
}

TEST_F(PreemptorTest, OnlySequenceWithWindowsWaitsForItsBatchesInFlight) {
  shape_.groups = {{.retention = KvRetention::kSlidingWindow, .span = 4}};
  blocks_ = MakeBlocks(shape_);
  limits_ = CacheLimits(shape_, blocks_);
  auto preemptor = Make();
  SequenceState& only = Run();
  EXPECT_FALSE(preemptor->MakeRoom(only, 20, /*num_in_flight=*/1, batch_));
  EXPECT_TRUE(batch_.lacks_blocks());
  EXPECT_EQ(table_.num_running(), 1);
  EXPECT_DEATH(preemptor->MakeRoom(only, 20, /*num_in_flight=*/0, batch_), "one sequence");
}

TEST_F(PreemptorTest, ASwapMovesTheCommittedBlocksOutAndIn) {
  auto preemptor = Make();
  SequenceState& first = Run();
  SequenceState& second = Run();
  SequenceState& third = Run();
  const auto row = blocks_.blocks(*third.slot);
  const std::vector<int32_t> blocks = {row[0].value(), row[1].value()};
  ASSERT_TRUE(preemptor->MakeRoom(first, 5, 0, batch_));
  EXPECT_TRUE(third.stored_as.has_value());
  EXPECT_EQ(preemptor->swap_statistics().num_swap_outs, 1);
  EXPECT_EQ(preemptor->swap_statistics().num_blocks_out, 2);
  EXPECT_EQ(preemptor->swap_store()->num_tokens(*third.stored_as), 4);
  EXPECT_EQ(num_free(), 1);
  preemptor->CheckInvariants();
  std::vector<BlockCopy> outs;
  {
    const ScheduledBatch& made = Finish(first);
    outs.assign(made.swap_outs.begin(), made.swap_outs.end());
    EXPECT_THAT(made.leaves, ElementsAre(SlotId(2)));
  }
  ASSERT_EQ(outs.size(), 2u);
  EXPECT_EQ(outs[0].src, blocks[0]);
  EXPECT_EQ(outs[1].src, blocks[1]);

  // The 4 swapped tokens and the remaining token need 3 blocks.
  batch_.Begin();
  EXPECT_TRUE(
      absl::IsResourceExhausted(preemptor->SwapIn(third, table_.next_slot(), 16, batch_).status()));
  EXPECT_TRUE(third.stored_as.has_value());
  EXPECT_FALSE(blocks_.contains(table_.next_slot()));
  EXPECT_FALSE(batch_.has_swap_ins());
  End(second);
  const auto hits = preemptor->SwapIn(third, table_.next_slot(), 16, batch_);
  ASSERT_TRUE(hits.ok()) << hits.status();
  EXPECT_EQ(hits->num_tokens, 4);
  EXPECT_EQ(blocks_.num_tokens(table_.next_slot()), 5);
  EXPECT_FALSE(third.stored_as.has_value());
  EXPECT_EQ(preemptor->swap_statistics().num_swap_ins, 1);
  EXPECT_EQ(preemptor->swap_statistics().num_blocks_in, 2);
  EXPECT_EQ(preemptor->swap_store()->num_sequences(), 0);
  table_.Admit(third);
  preemptor->CheckInvariants();
  const ScheduledBatch& made = Finish(first);
  ASSERT_EQ(made.swap_ins.size(), 2u);
  EXPECT_EQ(made.swap_ins[0].src, outs[0].dst);
  EXPECT_EQ(made.swap_ins[1].src, outs[1].dst);
  EXPECT_THAT(made.swap_outs, IsEmpty());
}

TEST_F(PreemptorTest, NoSequenceIsSwappedOutOfABatchThatSwapsIn) {
  auto preemptor = Make();
  SequenceState& first = Run();
  Run();
  const BlockCopy in = {.src = 1, .dst = 2};
  batch_.SwapIn({&in, 1});
  Run();
  EXPECT_TRUE(preemptor->MakeRoom(first, 5, 0, batch_));
  EXPECT_EQ(preemptor->num_preemptions(), 1);
  EXPECT_EQ(preemptor->swap_statistics().num_swap_outs, 0);
}

TEST_F(PreemptorTest, ASequenceWithoutCommittedTokensIsNotSwapped) {
  auto preemptor = Make();
  SequenceState& first = Run();
  Run();
  SequenceState& third = AddRequest(table_, {.prompt = {1, 2, 3}}).sequences[0];
  table_.Admit(third);
  ASSERT_TRUE(blocks_.Add(*third.slot, 3).ok());
  EXPECT_TRUE(preemptor->MakeRoom(first, 5, 0, batch_));
  EXPECT_FALSE(third.stored_as.has_value());
  EXPECT_EQ(preemptor->swap_statistics().num_swap_outs, 0);
}

TEST_F(PreemptorTest, WithoutHostBlocksTheVictimIsComputedAgain) {
  shape_.num_swap_blocks = 2;  // one block; the victim has two
  auto preemptor = Make();
  SequenceState& first = Run();
  Run();
  SequenceState& third = Run();
  EXPECT_TRUE(preemptor->MakeRoom(first, 5, 0, batch_));
  EXPECT_FALSE(third.stored_as.has_value());
  EXPECT_EQ(preemptor->num_preemptions(), 1);

  shape_.num_swap_blocks = 0;
  EXPECT_EQ(Make()->swap_store(), nullptr);
  EXPECT_EQ(Make(PreemptionMode::kRecompute)->swap_store(), nullptr);
  shape_.num_swap_blocks = 1;
  const auto refused = Preemptor::Create(shape_, SmallPolicy(), &blocks_, &limits_, &table_);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
}

// Recomputing 5 tokens takes 500 us. A swap takes 2 * (10 + 2) us, and 100 us for the token left.
TEST_F(PreemptorTest, TheRuleDecidesByTheCosts) {
  auto cheap = Make(PreemptionMode::kAuto);
  SequenceState& first = Run();
  Run();
  SequenceState& third = Run();
  ASSERT_TRUE(cheap->MakeRoom(first, 5, 0, batch_));
  ASSERT_TRUE(third.stored_as.has_value());
  EXPECT_TRUE(cheap->ReturnsBySwap(third, 0));
  EXPECT_TRUE(cheap->ReturnsBySwap(third, 2)) << "300 us against 112";
  EXPECT_FALSE(cheap->ReturnsBySwap(third, 4)) << "100 us against 112";
}

TEST_F(PreemptorTest, TheRuleRecomputesIfSwapsAreSlow) {
  costs_.us_per_swap = 250;
  auto slow = Make(PreemptionMode::kAuto);
  SequenceState& first = Run();
  Run();
  SequenceState& third = Run();
  ASSERT_TRUE(slow->MakeRoom(first, 5, 0, batch_));
  EXPECT_FALSE(third.stored_as.has_value());
}

TEST_F(PreemptorTest, WithModeSwapASequenceReturnsBySwapUnlessTheCacheHasItsTokens) {
  costs_.us_per_swap = 1e6;
  auto preemptor = Make(PreemptionMode::kSwap);
  SequenceState& first = Run();
  Run();
  SequenceState& third = Run();
  ASSERT_TRUE(preemptor->MakeRoom(first, 5, 0, batch_));
  EXPECT_TRUE(preemptor->ReturnsBySwap(third, 3));
  EXPECT_FALSE(preemptor->ReturnsBySwap(third, 4));
}

class SharingPreemptorTest : public PreemptorTest {
 protected:
  SharingPreemptorTest() : PreemptorTest(PrefixReuse::kOn) {}
};

// The fork's two full blocks stay in use, so only one of its tokens would be computed again: 100 us
// against 124 us of a swap.
TEST_F(SharingPreemptorTest, TokensInSharedBlocksCountAsFound) {
  auto preemptor = Make(PreemptionMode::kAuto);
  SequenceState& first = Run();
  SequenceState& fork = AddRequest(table_, {.prompt = {1, 2, 3, 4, 5}}).sequences[0];
  table_.Admit(fork);
  ASSERT_TRUE(blocks_.Fork(*first.slot, *fork.slot).ok());
  ASSERT_TRUE(preemptor->MakeRoom(first, 12, 0, batch_)) << "4 blocks were free";
  ASSERT_EQ(preemptor->num_preemptions(), 0);
  EXPECT_FALSE(preemptor->MakeRoom(fork, 5, 0, batch_));
  EXPECT_EQ(preemptor->num_preemptions(), 1);
  EXPECT_EQ(preemptor->swap_statistics().num_swap_outs, 0);
}

TEST_F(SharingPreemptorTest, TokensInOtherBlocksAreSwapped) {
  auto preemptor = Make(PreemptionMode::kAuto);
  SequenceState& first = Run();
  SequenceState& other = Run();
  ASSERT_TRUE(preemptor->MakeRoom(first, 8, 0, batch_));
  EXPECT_FALSE(preemptor->MakeRoom(other, 5, 0, batch_));
  EXPECT_EQ(preemptor->swap_statistics().num_swap_outs, 1);
}

TEST_F(PreemptorTest, DropFreesTheHostBlocks) {
  auto preemptor = Make();
  SequenceState& first = Run();
  Run();
  SequenceState& third = Run();
  preemptor->Drop(third);  // has none
  ASSERT_TRUE(preemptor->MakeRoom(first, 5, 0, batch_));
  EXPECT_EQ(preemptor->swap_store()->host_pool().num_allocatable(), 4);
  preemptor->Drop(third);
  EXPECT_FALSE(third.stored_as.has_value());
  EXPECT_EQ(preemptor->swap_store()->host_pool().num_allocatable(), 6);
  preemptor->CheckInvariants();
}

TEST_F(PreemptorTest, CheckInvariantsFindsSequencesThatAreNotInTheStore) {
  auto preemptor = Make();
  SequenceState& first = Run();
  SequenceState& waiting = AddRequest(table_, {.prompt = {1}}).sequences[0];
  EXPECT_DEATH((first.stored_as = SequenceId(0), preemptor->CheckInvariants()), "2: request 0");
  EXPECT_DEATH((waiting.stored_as = SequenceId(0), preemptor->CheckInvariants()), "2");
}

}  // namespace
}  // namespace reprise
