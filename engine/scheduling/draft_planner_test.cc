// Numbers of drafts and their acceptance, without a scheduler.

#include "reprise/engine/scheduling/draft_planner.h"

#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/engine/testing/waiting_requests.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 4 slots, 16 tokens per step, 20 blocks of 4 tokens, and up to 4 drafts per row.
class DraftPlannerTest : public ::testing::Test {
 protected:
  DraftPlannerTest() { shape_.drafts = {.max_drafts = 4}; }

  // Makes the planner; the shape and the policy are constant then.
  DraftPlanner& Make(SpeculationPolicy speculation = {.num_drafts = 4}) {
    SchedulerPolicy policy = SmallPolicy();
    policy.speculation = speculation;
    blocks_ = std::make_unique<BlockManager>(MakeBlocks(shape_));
    limits_ = std::make_unique<CacheLimits>(shape_, *blocks_);
    batch_ = std::make_unique<BatchInProgress>(shape_, policy);
    planner_ = std::make_unique<DraftPlanner>(shape_, policy, blocks_.get(), limits_.get());
    batch_->Begin();
    return *planner_;
  }

  SequenceState& Run(Request request) {
    SequenceState& sequence = RunRequest(table_, *blocks_, std::move(request));
    sequence.added->max_drafts = planner_->MaxDraftsOf(sequence.request());
    sequence.num_drafted = sequence.num_scheduled;
    if (!sequence.request().predicted_tokens.empty()) {
      sequence.predicted.emplace(sequence.request().predicted_tokens);
    }
    return sequence;
  }

  // Runs a sequence, and adds its decode to the batch.
  SequenceState& RunDecode(Request request = {.prompt = {1, 2, 3, 4, 5}}) {
    SequenceState& sequence = Run(std::move(request));
    AddDecode(sequence);
    return sequence;
  }

  void AddDecode(SequenceState& sequence) {
    const int num_lacking = sequence.num_scheduled + 1 - blocks_->num_tokens(*sequence.slot);
    if (num_lacking > 0) {
      ASSERT_TRUE(blocks_->Append(*sequence.slot, num_lacking).ok());
    }
    batch_->AddRow(BatchRowKind::kDecode, {.slot = *sequence.slot},
                   {.sequence = &sequence, .output = RowOutput::kToken, .num_new_tokens = 1});
  }

  // Adds a sequence whose batch row is a prefill chunk of `num_tokens` tokens.
  SequenceState& AddChunk(int num_tokens, RowLogits logits = RowLogits::kLast) {
    SequenceState& sequence =
        AddRequest(table_, {.prompt = std::vector<int32_t>(num_tokens, 1)}).sequences[0];
    table_.Admit(sequence);
    EXPECT_TRUE(blocks_->Add(*sequence.slot, num_tokens).ok());
    batch_->AddRow(BatchRowKind::kPrompt,
                   {.slot = *sequence.slot, .tokens = sequence.tokens, .logits = logits},
                   {.sequence = &sequence});
    return sequence;
  }

  // Draft counts of the batch's rows.
  std::vector<int> Drafts() {
    planner_->AddDrafts(*batch_);
    batch_->CheckInvariants();
    std::vector<int> drafts;
    for (const ScheduledRow& row : batch_->rows()) drafts.push_back(row.draft_count());
    return drafts;
  }

  RunnerShape shape_ = SmallShape();
  SequenceTable table_{4};
  std::unique_ptr<BlockManager> blocks_;
  std::unique_ptr<CacheLimits> limits_;
  std::unique_ptr<BatchInProgress> batch_;
  std::unique_ptr<DraftPlanner> planner_;
};

TEST_F(DraftPlannerTest, RowsWithLogitsRequestsHaveNoDrafts) {
  const DraftPlanner& planner = Make();
  EXPECT_EQ(planner.MaxDraftsOf({.prompt = {1}}), 4);
  EXPECT_EQ(planner.MaxDraftsOf({.prompt = {1}, .max_drafts = 3}), 3);
  EXPECT_EQ(planner.MaxDraftsOf({.prompt = {1}, .max_drafts = 9}), 4);
  EXPECT_EQ(planner.MaxDraftsOf({.prompt = {1}, .max_drafts = 0}), 0);
  EXPECT_EQ(planner.MaxDraftsOf({.prompt = {1}, .forced_tokens = {2}}), 0);
  EXPECT_EQ(planner.MaxDraftsOf({.prompt = {1}, .num_log_probs = 0}), 0);
  EXPECT_EQ(planner.MaxDraftsOf({.prompt = {1}, .sampling = {.presence_penalty = 1}}), 0);
  EXPECT_EQ(planner.MaxDraftsOf({.prompt = {1}, .logits_stages = 1}), 0);
  EXPECT_EQ(planner.MaxDraftsOf({.prompt = {1}, .new_token_masker = [] { return nullptr; }}), 0);
}

TEST_F(DraftPlannerTest, NewSequenceHasTheMaximumNumberOfDraftsAndAllocatedRoom) {
  Make();
  const SequenceState& sequence = RunDecode();
  EXPECT_THAT(Drafts(), ElementsAre(4));
  EXPECT_EQ(sequence.num_scheduled, 9);
  EXPECT_EQ(sequence.num_in_flight, 5);
  EXPECT_EQ(blocks_->num_tokens(*sequence.slot), 9);
}

TEST_F(DraftPlannerTest, DraftsEndWithTheSequenceItsRequestAndTheCache) {
  Make();
  RunDecode({.prompt = {1, 2, 3, 4, 5}, .max_new_tokens = 3});  // the row itself generates one
  RunDecode({.prompt = {1, 2, 3, 4, 5}, .max_drafts = 1});
  RunDecode({.prompt = std::vector<int32_t>(38, 1)});  // 38 are scheduled, 40 can be cached
  EXPECT_THAT(Drafts(), ElementsAre(2, 1, 2));
}

TEST_F(DraftPlannerTest, DraftsUseTheTokensThatTheStepLeaves) {
  Make();
  RunDecode();
  RunDecode();
  AddChunk(9);
  EXPECT_THAT(Drafts(), ElementsAre(4, 1, 0)) << "16 tokens less 2 decodes and 9 prompt tokens";
}

// The runner has earlier logits for one draft of each of 4 rows. A scored prompt takes 3 of them.
TEST_F(DraftPlannerTest, DraftsUseTheEarlierLogitsThatPromptsLeave) {
  Make({.num_drafts = 1});
  RunDecode();
  RunDecode();
  AddChunk(4, RowLogits::kAll);
  EXPECT_THAT(Drafts(), ElementsAre(1, 0, 0));
}

TEST_F(DraftPlannerTest, DraftsGrowIntoTheLastBlockAndPreemptNoSequence) {
  shape_.num_blocks = 5;  // 4 blocks, all taken by two sequences of 5 tokens
  Make();
  const SequenceState& first = RunDecode();
  RunDecode();
  EXPECT_THAT(Drafts(), ElementsAre(3, 3));
  EXPECT_EQ(blocks_->num_tokens(*first.slot), 8);
  EXPECT_EQ(table_.num_running(), 2);
}

TEST_F(DraftPlannerTest, ABatchThatLacksBlocksHasNoDrafts) {
  Make();
  RunDecode();
  batch_->NoteLackOfBlocks();
  EXPECT_THAT(Drafts(), ElementsAre(0));
}

TEST_F(DraftPlannerTest, APolicyWithoutDraftsAddsNone) {
  Make({.num_drafts = 0});
  RunDecode();
  EXPECT_THAT(Drafts(), ElementsAre(0));
}

TEST_F(DraftPlannerTest, TreesHaveWholeLevels) {
  shape_.drafts = {.max_drafts = 6, .level_drafts = {2, 6}, .has_trees = true};
  Make({.num_drafts = 2});
  const SequenceState& first = RunDecode();
  const SequenceState& second = RunDecode();
  AddChunk(3);
  EXPECT_THAT(Drafts(), ElementsAre(6, 2, 0)) << "5 tokens are left for the second tree";
  EXPECT_EQ(batch_->open_rows()[0].num_levels, 2);
  EXPECT_EQ(batch_->open_rows()[1].num_levels, 1);
  EXPECT_EQ(first.num_in_flight, 3);
  EXPECT_EQ(second.num_in_flight, 2);
}

TEST_F(DraftPlannerTest, LargeStepsHaveNoDraftsAndAreCounted) {
  Make({.num_drafts = 4, .max_speculating_rows = 1});
  RunDecode();
  EXPECT_THAT(Drafts(), ElementsAre(4));
  EXPECT_EQ(planner_->statistics().num_too_large_steps, 0);
  batch_->Begin();
  RunDecode();
  RunDecode();
  EXPECT_THAT(Drafts(), ElementsAre(0, 0));
  EXPECT_EQ(planner_->statistics().num_too_large_steps, 1);
}

TEST_F(DraftPlannerTest, PredictedTokensReplaceTheDraftersDrafts) {
  Make();
  RunDecode({.prompt = {1, 2, 3, 4, 5}, .predicted_tokens = {20, 21, 22}});
  RunDecode();
  EXPECT_THAT(Drafts(), ElementsAre(3, 4));
  EXPECT_THAT(batch_->rows()[0].drafts, ElementsAre(20, 21, 22));
  EXPECT_TRUE(batch_->open_rows()[0].has_given_drafts);
  EXPECT_THAT(batch_->rows()[1].drafts, IsEmpty());
}

TEST_F(DraftPlannerTest, WithoutAProposerOnlyPredictionsAreDrafts) {
  shape_.drafts.has_proposer = false;
  Make();
  RunDecode({.prompt = {1, 2, 3, 4, 5}, .predicted_tokens = {20}});
  RunDecode();
  EXPECT_THAT(Drafts(), ElementsAre(1, 0));
}

// ---- Acceptance.

TEST_F(DraftPlannerTest, AcceptTakesRejectedDraftsOffTheCounts) {
  DraftPlanner& planner = Make();
  const SequenceState& sequence = RunDecode();
  ASSERT_THAT(Drafts(), ElementsAre(4));
  const std::vector<int32_t> new_tokens = {7, 8, 9};
  planner.Accept(batch_->open_rows()[0], new_tokens, 1);
  EXPECT_EQ(sequence.num_in_flight, 3);
  EXPECT_EQ(sequence.num_scheduled, 7);
  EXPECT_EQ(planner.statistics().num_rows, 1);
  EXPECT_EQ(planner.statistics().num_drafts, 4);
  EXPECT_EQ(planner.statistics().num_accepted, 2);
  EXPECT_EQ(planner.statistics().num_catch_up_rows, 0);
  EXPECT_GT(planner.costs().acceptance(0), planner.costs().acceptance(2));
}

TEST_F(DraftPlannerTest, AcceptOfATreeCountsNodesAndLevels) {
  shape_.drafts = {.max_drafts = 6, .level_drafts = {2, 6}, .has_trees = true};
  DraftPlanner& planner = Make({.num_drafts = 2});
  const SequenceState& sequence = RunDecode();
  ASSERT_THAT(Drafts(), ElementsAre(6));
  planner.Accept(batch_->open_rows()[0], std::vector<int32_t>{7, 8}, 1);
  EXPECT_EQ(planner.statistics().num_accepted, 1);
  EXPECT_EQ(sequence.num_scheduled, 6) << "4 + 1 + 6 less 5 nodes";
  EXPECT_EQ(sequence.num_in_flight, 2) << "1 + 2 less 1 level";
}

TEST_F(DraftPlannerTest, AcceptDiesForANumberOfTokensThatIsOutOfRange) {
  DraftPlanner& planner = Make();
  RunDecode();
  ASSERT_THAT(Drafts(), ElementsAre(4));
  const std::vector<int32_t> tokens(6, 1);
  EXPECT_DEATH(planner.Accept(batch_->open_rows()[0], tokens, 1), "expected 1 to 5 new tokens");
  EXPECT_DEATH(planner.Accept(batch_->open_rows()[0], {}, 1), "expected 1 to 5 new tokens, got 0");
}

TEST_F(DraftPlannerTest, SequencesThatAcceptLittleHaveFewerDrafts) {
  DraftPlanner& planner = Make();
  SequenceState& sequence = Run({.prompt = {1, 2, 3, 4, 5}});
  std::vector<int> drafts;
  for (int step = 0; step < 20; ++step) {
    batch_->Begin();
    AddDecode(sequence);
    drafts.push_back(Drafts()[0]);
    const std::vector<int32_t> new_tokens = {7};  // none accepted
    if (drafts.back() > 0) planner.Accept(batch_->open_rows()[0], new_tokens, 1);
    // The token is not taken, so that the sequence stays where it is.
    --sequence.num_scheduled;
    --sequence.num_in_flight;
    ASSERT_EQ(sequence.num_scheduled, 4);
  }
  EXPECT_EQ(drafts[0], 4);
  EXPECT_LT(drafts[3], 4);
  EXPECT_EQ(drafts[12], 0) << "rejected drafts do not pay";
}

// A step with drafts takes 100 times as long as a plain one, and no draft is accepted.
TEST_F(DraftPlannerTest, MeasuredStepsHaveNoDraftsThatDoNotPay) {
  DraftPlanner& planner = Make({.num_drafts = 4, .measures_steps = true});
  SequenceState& sequence = Run({.prompt = {1, 2, 3, 4, 5}});
  int num_plain = 0;
  for (int step = 0; step < 100; ++step) {
    batch_->Begin();
    AddDecode(sequence);
    const int num_drafts = Drafts()[0];
    num_plain += num_drafts == 0 ? 1 : 0;
    const std::vector<int32_t> new_tokens = {7};
    const StepResult result = {.tokens = new_tokens};
    planner.ObserveStep(absl::Microseconds(num_drafts == 0 ? 10 : 1000), batch_->open_rows(),
                        result);
    if (num_drafts > 0) planner.Accept(batch_->open_rows()[0], new_tokens, 1);
    --sequence.num_scheduled;
    --sequence.num_in_flight;
  }
  EXPECT_GT(num_plain, 50);
  EXPECT_EQ(planner.statistics().num_unpaid_steps, num_plain);
}

// ---- Drafters with a KV cache.

class DrafterKeysTest : public DraftPlannerTest {
 protected:
  DrafterKeysTest() { shape_.drafts.keys = DrafterKeys::kOfDrafts; }
};

TEST_F(DrafterKeysTest, ADrafterHasReadTheTokensThatItsBlocksRecord) {
  DraftPlanner& planner = Make();
  SequenceState& first = Run({.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9}});  // 8 tokens in 2 blocks
  EXPECT_EQ(planner.Join(first, *first.slot, 8, /*swapped_in=*/false), 8) << "nothing is recorded";
  EXPECT_EQ(first.num_drafted, 0);
  first.num_drafted = 6;
  planner.NoteCommitted(first, {.first = 0, .end = 8});
  SequenceState& fork = AddRequest(table_, {.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9}}).sequences[0];
  table_.Admit(fork);
  ASSERT_TRUE(blocks_->Fork(*first.slot, *fork.slot).ok());
  EXPECT_EQ(planner.Join(fork, *fork.slot, 8, /*swapped_in=*/false), 2);
  EXPECT_EQ(fork.num_drafted, 6);
  EXPECT_EQ(planner.Join(fork, *fork.slot, 4, /*swapped_in=*/false), 0);
  EXPECT_EQ(planner.Join(fork, *fork.slot, 0, /*swapped_in=*/false), 0);
}

TEST_F(DrafterKeysTest, SwappedSequenceKeepsTheCountReadByTheDrafter) {
  DraftPlanner& planner = Make();
  SequenceState& sequence = Run({.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9}});
  sequence.num_drafted = 9;
  EXPECT_EQ(planner.Join(sequence, *sequence.slot, 8, /*swapped_in=*/true), 0);
  EXPECT_EQ(sequence.num_drafted, 8);
  sequence.num_drafted = 3;
  EXPECT_EQ(planner.Join(sequence, *sequence.slot, 8, /*swapped_in=*/true), 5);
  EXPECT_EQ(planner.Join(sequence, *sequence.slot, 8, /*swapped_in=*/false), 5) << "recorded";
}

TEST_F(DraftPlannerTest, WithoutADraftersKeysNoTokenIsUnread) {
  DraftPlanner& planner = Make();
  SequenceState& sequence = Run({.prompt = {1, 2, 3, 4, 5}});
  EXPECT_EQ(planner.Join(sequence, *sequence.slot, 4, /*swapped_in=*/false), 0);
}

TEST_F(DrafterKeysTest, ADrafterThatLagsGetsCatchUpRows) {
  DraftPlanner& planner = Make();
  SequenceState& sequence = Run({.prompt = std::vector<int32_t>(11, 1)});
  sequence.num_drafted = 0;             // 10 tokens are unread: 2 rows of 4 drafts before the third
  sequence.draft_length.Observe(1, 0);  // next: fewer than 4 drafts
  AddDecode(sequence);
  ASSERT_THAT(Drafts(), ElementsAre(4));
  // The drafter proposes nothing: all drafts are token 0, and one of them happens to be right.
  planner.Accept(batch_->open_rows()[0], std::vector<int32_t>{0, 9}, 1);
  EXPECT_EQ(sequence.num_in_flight, 2) << "1 + 4 less the 3 drafts that were wrong";
  EXPECT_EQ(sequence.num_drafted, 5);
  EXPECT_EQ(planner.statistics().num_catch_up_rows, 1);
  EXPECT_EQ(planner.statistics().num_rows, 0);
}

TEST_F(DrafterKeysTest, ASequenceThatIsAboutToEndDoesNotCatchUp) {
  Make();
  SequenceState& ends = Run({.prompt = std::vector<int32_t>(11, 1), .max_new_tokens = 3});
  ends.num_drafted = 0;
  AddDecode(ends);
  EXPECT_THAT(Drafts(), ElementsAre(0)) << "2 rows of catching up for 2 tokens";
}

TEST_F(DrafterKeysTest, AnAcceptedTokenShowsThatTheDrafterHasProposed) {
  DraftPlanner& planner = Make();
  SequenceState& sequence = Run({.prompt = std::vector<int32_t>(11, 1)});
  sequence.num_drafted = 0;
  AddDecode(sequence);
  ASSERT_THAT(Drafts(), ElementsAre(4));
  planner.Accept(batch_->open_rows()[0], std::vector<int32_t>{8, 9}, 1);
  EXPECT_EQ(planner.statistics().num_catch_up_rows, 0);
  EXPECT_EQ(planner.statistics().num_accepted, 1);
  EXPECT_EQ(sequence.num_drafted, 12) << "11 known tokens and the accepted draft";
}

TEST_F(DrafterKeysTest, HeadsReadAcceptedDraftsAgain) {
  shape_.drafts.keys = DrafterKeys::kOfTokens;
  DraftPlanner& planner = Make();
  SequenceState& sequence = RunDecode();
  ASSERT_THAT(Drafts(), ElementsAre(4));
  planner.Accept(batch_->open_rows()[0], std::vector<int32_t>{7, 8, 9}, 1);
  EXPECT_EQ(planner.statistics().num_accepted, 2);
  EXPECT_EQ(sequence.num_drafted, 5) << "the known tokens";
}

TEST_F(DrafterKeysTest, AStepWithAPromptAndALongRowFeedsTheDrafter) {
  DraftPlanner& planner = Make({.num_drafts = 0});
  const SequenceState& chunk = AddChunk(4);
  RunDecode();
  planner.AddDrafts(*batch_);
  EXPECT_TRUE(batch_->open_rows()[0].feeds_drafter);
  EXPECT_TRUE(batch_->open_rows()[1].feeds_drafter);
  EXPECT_EQ(chunk.num_drafted, 0);
  planner.NoteFed(batch_->open_rows()[0]);
  EXPECT_EQ(chunk.num_drafted, 4);

  batch_->Begin();
  AddChunk(1);
  planner.AddDrafts(*batch_);
  EXPECT_FALSE(batch_->open_rows()[0].feeds_drafter) << "no row is longer than a token";
}

TEST_F(DrafterKeysTest, ADrafterThatLagsSkipsTheTokensOfAPrompt) {
  DraftPlanner& planner = Make({.num_drafts = 0});
  SequenceState& sequence = AddChunk(4);
  ASSERT_TRUE(blocks_->Commit(*sequence.slot, std::vector<int32_t>{1, 1}).ok());
  sequence.num_drafted = 1;
  planner.AddDrafts(*batch_);
  planner.NoteFed(batch_->open_rows()[0]);
  EXPECT_EQ(sequence.num_drafted, 1) << "token 1 is unread, so later ones do not count";
}

TEST_F(DraftPlannerTest, DoesNotAllocateInTheSteadyState) {
  DraftPlanner& planner = Make({.num_drafts = 2});
  SequenceState& sequence = Run({.prompt = {1, 2, 3, 4, 5}});
  const std::vector<int32_t> new_tokens = {7, 8, 9};
  ASSERT_TRUE(blocks_->Append(*sequence.slot, 3).ok());
  const AllocationCounter allocations;
  for (int step = 0; step < 20; ++step) {
    batch_->Begin();
    batch_->AddRow(BatchRowKind::kDecode, {.slot = *sequence.slot},
                   {.sequence = &sequence, .output = RowOutput::kToken, .num_new_tokens = 1});
    planner.AddDrafts(*batch_);
    planner.Accept(batch_->open_rows()[0], new_tokens, 1);
    sequence.num_scheduled -= 3;
    sequence.num_in_flight -= 3;
  }
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_EQ(planner.statistics().num_accepted, 40);
}

}  // namespace
}  // namespace reprise
