// A batch that is built without a scheduler: its view, its budgets, and what stays for the next
// one.

#include "reprise/engine/scheduling/batch_in_progress.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/engine/testing/waiting_requests.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class BatchInProgressTest : public ::testing::Test {
 protected:
  // A running sequence without blocks.
  SequenceState& Run(Request request = {.prompt = {1, 2, 3}}) {
    SequenceState& sequence = AddRequest(table_, std::move(request)).sequences[0];
    table_.Admit(sequence);
    return sequence;
  }

  static void AddDecode(BatchInProgress& batch, SequenceState& sequence) {
    batch.AddRow(BatchRowKind::kDecode, {.slot = *sequence.slot},
                 {.sequence = &sequence, .output = RowOutput::kToken, .num_new_tokens = 1});
  }

  static void AddChunk(BatchInProgress& batch, SequenceState& sequence, int num_tokens,
                       RowLogits logits = RowLogits::kLast) {
    batch.AddRow(BatchRowKind::kPrompt,
                 {.slot = *sequence.slot,
                  .tokens = absl::MakeConstSpan(sequence.tokens).first(num_tokens),
                  .logits = logits},
                 {.sequence = &sequence});
  }

  static const ScheduledBatch& Finish(BatchInProgress& batch) { return batch.Finish({}, {}); }

  BatchInProgress Make(int max_prefill_tokens_while_decoding = 0) {
    SchedulerPolicy policy = SmallPolicy();
    policy.prefill_chunk = 6;
    policy.max_prefill_tokens_while_decoding = max_prefill_tokens_while_decoding;
    return BatchInProgress(shape_, policy);
  }

  RunnerShape shape_ = [] {
    RunnerShape shape = SmallShape();
    shape.mask_words = 4;
    shape.max_encoder_step_tokens = 10;
    return shape;
  }();
  SequenceTable table_{4};
};

TEST_F(BatchInProgressTest, ARowCountsInItsSequenceAndItsRequest) {
  BatchInProgress batch = Make();
  SequenceState& sequence = Run();
  batch.Begin();
  EXPECT_FALSE(batch.has_rows());
  AddDecode(batch, sequence);
  EXPECT_EQ(sequence.num_scheduled, 1);
  EXPECT_EQ(sequence.num_in_flight, 1);
  EXPECT_EQ(sequence.added->num_open_rows, 1);
  EXPECT_EQ(batch.open_rows()[0].admission, sequence.admission);
  EXPECT_EQ(batch.open_rows()[0].first_token, 0);
  EXPECT_EQ(batch.tokens_left(), 15);
  const std::vector<BlockTableUpdate> updates = {
      {.slot = SlotId(0), .column = 0, .block = BlockId(5)}};
  const std::vector<BlockCopy> copies = {{.src = 5, .dst = 6}};
  const ScheduledBatch& made = batch.Finish(updates, copies);
  EXPECT_THAT(made.rows, SizeIs(1));
  EXPECT_EQ(made.updates.data(), updates.data());
  EXPECT_THAT(made.copies, ElementsAre(BlockCopy{.src = 5, .dst = 6}));
  batch.CheckInvariants();
}

TEST_F(BatchInProgressTest, LeavesAndSwapsWaitForABatchWithRows) {
  BatchInProgress batch = Make();
  SequenceState& sequence = Run();
  batch.Leave(SlotId(3));
  batch.Begin();
  const BlockCopy out = {.src = 7, .dst = 1};
  batch.SwapOut({&out, 1});
  EXPECT_FALSE(batch.has_swap_ins());
  EXPECT_THAT(Finish(batch).leaves, IsEmpty());
  EXPECT_FALSE(batch.can_take_back());
  batch.Leave(SlotId(2));
  batch.Begin();
  AddDecode(batch, sequence);
  {
    const ScheduledBatch& made = Finish(batch);
    EXPECT_THAT(made.leaves, ElementsAre(SlotId(3), SlotId(2)));
    EXPECT_THAT(made.swap_outs, ElementsAre(out));
  }
  EXPECT_TRUE(batch.can_take_back());
  batch.Begin();
  AddDecode(batch, sequence);
  const ScheduledBatch& next = Finish(batch);
  EXPECT_THAT(next.leaves, IsEmpty());
  EXPECT_THAT(next.swap_outs, IsEmpty());
}

TEST_F(BatchInProgressTest, APreemptedSlotLeavesInTheSameBatchWithoutItsLogitsRequest) {
  BatchInProgress batch = Make();
  SequenceState& sequence = Run();
  batch.Leave(SlotId(1));
  batch.Begin();
  batch.AddLogitsRequest({.slot = SlotId(1)});
  batch.AddLogitsRequest({.slot = SlotId(2)});
  batch.Leave(SlotId(3));  // in the next batch
  batch.LeaveNow(SlotId(2));
  AddDecode(batch, sequence);
  const ScheduledBatch& made = Finish(batch);
  EXPECT_THAT(made.leaves, ElementsAre(SlotId(1), SlotId(2)));
  ASSERT_THAT(made.logits_requests, SizeIs(1));
  EXPECT_EQ(made.logits_requests[0].slot, SlotId(1));
}

TEST_F(BatchInProgressTest, ARefusedBatchKeepsItsLeavesAndDropsItsJoins) {
  BatchInProgress batch = Make();
  SequenceState& sequence = Run();
  batch.Leave(SlotId(1));
  batch.Begin();
  batch.Join({.slot = SlotId(1)});
  AddDecode(batch, sequence);
  Finish(batch);
  ASSERT_TRUE(batch.can_take_back());
  batch.Leave(SlotId(1));  // joined in the refused batch only
  batch.Leave(SlotId(0));  // joined before
  EXPECT_FALSE(batch.can_take_back()) << "a slot was left since Finish()";
  batch.TakeBack();
  batch.Begin();
  AddDecode(batch, sequence);
  const ScheduledBatch& made = Finish(batch);
  EXPECT_THAT(made.leaves, ElementsAre(SlotId(1), SlotId(0)));
  EXPECT_THAT(made.joins, IsEmpty());
}

TEST_F(BatchInProgressTest, PromptsGetTheMinimumOfThreeBudgets) {
  SequenceState& first = Run({.prompt = std::vector<int32_t>(12, 1)});
  SequenceState& second = Run({.prompt = std::vector<int32_t>(12, 1)});
  SequenceState& decoding = Run();
  BatchInProgress plain = Make();
  plain.Begin();
  EXPECT_EQ(plain.prompt_tokens_left(), 6) << "prefill_chunk";
  AddChunk(plain, first, 12);
  EXPECT_EQ(plain.prompt_tokens_left(), 4) << "max_num_tokens";
  EXPECT_EQ(plain.num_prompt_tokens(), 12);

  BatchInProgress limited = Make(/*max_prefill_tokens_while_decoding=*/5);
  limited.Begin();
  EXPECT_EQ(limited.prompt_tokens_left(), 6) << "no decode yet";
  AddDecode(limited, decoding);
  EXPECT_EQ(limited.prompt_tokens_left(), 5);
  AddChunk(limited, first, 3);
  EXPECT_EQ(limited.prompt_tokens_left(), 2);
  AddChunk(limited, second, 3);
  EXPECT_EQ(limited.prompt_tokens_left(), -1);
  limited.Begin();
  EXPECT_EQ(limited.prompt_tokens_left(), 6);
  EXPECT_EQ(limited.tokens_left(), 16);
}

TEST_F(BatchInProgressTest, AnEncodeBelongsToTheRowOfItsSlot) {
  BatchInProgress batch = Make();
  SequenceState& first = Run();
  SequenceState& second = Run();
  batch.Begin();
  const std::vector<int32_t> input = {1, 2, 3, 4};
  AddDecode(batch, first);
  batch.AddEncode({.slot = *second.slot, .tokens = input});
  EXPECT_EQ(batch.encoder_tokens_left(), 6);
  AddChunk(batch, second, 2);
  EXPECT_FALSE(batch.open_rows()[0].encodes);
  EXPECT_TRUE(batch.open_rows()[1].encodes);
  batch.Begin();
  EXPECT_EQ(batch.encoder_tokens_left(), 10);
  AddChunk(batch, second, 1);
  EXPECT_FALSE(batch.open_rows()[0].encodes);
}

// Earlier logits: 3 - 1 of a scored chunk, none of a chunk, 2 of drafts, none of a plain decode.
TEST_F(BatchInProgressTest, FinishNumbersTheEarlierLogitsOfAllRows) {
  BatchInProgress batch = Make();
  SequenceState& scored = Run();
  SequenceState& chunk = Run();
  SequenceState& drafting = Run();
  SequenceState& plain = Run();
  batch.Begin();
  AddDecode(batch, drafting);
  AddDecode(batch, plain);
  AddChunk(batch, chunk, 2);
  AddChunk(batch, scored, 3, RowLogits::kAll);
  EXPECT_EQ(batch.num_earlier_logits(), 2);
  batch.AddDrafts(0, /*num_levels=*/2, /*num_drafts=*/2, {});
  EXPECT_EQ(batch.num_earlier_logits(), 4);
  const ScheduledBatch& made = Finish(batch);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(batch.open_rows()[i].first_earlier, FirstEarlierLogits(made.rows, i)) << "row " << i;
  }
  EXPECT_TRUE(batch.open_rows()[0].has_earlier);
  EXPECT_FALSE(batch.open_rows()[1].has_earlier);
  EXPECT_FALSE(batch.open_rows()[2].has_earlier);
  EXPECT_TRUE(batch.open_rows()[3].has_earlier);
  batch.CheckInvariants();
}

TEST_F(BatchInProgressTest, ATreeOfDraftsCountsNodesAndLevels) {
  BatchInProgress batch = Make();
  SequenceState& sequence = Run();
  batch.Begin();
  AddDecode(batch, sequence);
  batch.AddDrafts(0, /*num_levels=*/2, /*num_drafts=*/6, {});
  EXPECT_EQ(sequence.num_scheduled, 7);
  EXPECT_EQ(sequence.num_in_flight, 3);
  EXPECT_EQ(batch.tokens_left(), 9);
  EXPECT_EQ(batch.rows()[0].draft_count(), 6);
  EXPECT_EQ(batch.open_rows()[0].num_tokens, 7);
  EXPECT_EQ(batch.open_rows()[0].num_new_tokens, 3);
  EXPECT_EQ(batch.open_rows()[0].num_levels, 2);
  EXPECT_FALSE(batch.open_rows()[0].has_given_drafts);
  batch.CheckInvariants();
}

TEST_F(BatchInProgressTest, GivenDraftsBecomeTheDraftsOfTheRow) {
  BatchInProgress batch = Make();
  SequenceState& sequence = Run();
  const std::vector<int32_t> drafts = {8, 9};
  batch.Begin();
  AddDecode(batch, sequence);
  batch.AddDrafts(0, 2, 2, drafts);
  EXPECT_THAT(batch.rows()[0].drafts, ElementsAre(8, 9));
  EXPECT_EQ(batch.rows()[0].num_drafts, 0);
  EXPECT_TRUE(batch.open_rows()[0].has_given_drafts);
  EXPECT_FALSE(batch.open_rows()[0].feeds_drafter);
  batch.MarkFedRows();
  EXPECT_TRUE(batch.open_rows()[0].feeds_drafter);
}

TEST_F(BatchInProgressTest, EachRowHasASeparateMask) {
  BatchInProgress batch = Make();
  EXPECT_DEATH(batch.NextMask(), "ReserveMasks");
  batch.ReserveMasks();
  batch.Begin();
  const absl::Span<int32_t> first = batch.NextMask();
  EXPECT_THAT(first, SizeIs(4));
  AddDecode(batch, Run());
  const absl::Span<int32_t> second = batch.NextMask();
  EXPECT_EQ(second.data(), first.data() + 4);
  batch.ReserveMasks();
  EXPECT_EQ(batch.NextMask().data(), second.data()) << "reserved already";
}

TEST_F(BatchInProgressTest, EmbeddingsBelongToTheNextRow) {
  BatchInProgress batch = Make();
  const std::vector<float> image = {1, 2, 3, 4};
  RequestState& request = AddRequest(
      table_,
      {.prompt = {1, 2, 3, 4, 5},
       .embeddings = {{.first_token = 2,
                       .rows = {.data = image.data(), .row_stride = 2, .num_rows = 2, .dim = 2}}}});
  request.content.ranges = {{.first_position = 2, .length = 2}};
  SequenceState& sequence = request.sequences[0];
  SequenceState& before = Run();
  table_.Admit(sequence);
  batch.Begin();
  AddDecode(batch, before);
  batch.AddEmbeddings(*before.added, 0, 1);
  batch.AddEmbeddings(request, 0, 4);
  AddChunk(batch, sequence, 4);
  const ScheduledBatch& made = Finish(batch);
  ASSERT_THAT(made.embeddings, SizeIs(1));
  EXPECT_EQ(made.embeddings[0].row, 1);
  EXPECT_EQ(made.embeddings[0].first_token, 2);
  EXPECT_EQ(made.embeddings[0].rows.data, image.data());
}

TEST_F(BatchInProgressTest, TheLackOfBlocksEndsWithTheBatch) {
  BatchInProgress batch = Make();
  batch.Begin();
  EXPECT_FALSE(batch.lacks_blocks());
  batch.NoteLackOfBlocks();
  EXPECT_TRUE(batch.lacks_blocks());
  Finish(batch);
  batch.Begin();
  EXPECT_FALSE(batch.lacks_blocks());
}

TEST_F(BatchInProgressTest, DoesNotAllocateInTheSteadyState) {
  BatchInProgress batch = Make();
  std::vector<SequenceState*> sequences = {&Run(), &Run(), &Run(), &Run()};
  const AllocationCounter allocations;
  for (int step = 0; step < 10; ++step) {
    for (int slot = 0; slot < 4; ++slot) batch.Leave(SlotId(slot));
    batch.Begin();
    for (SequenceState* sequence : sequences) {
      batch.Join({.slot = *sequence->slot});
      batch.AddLogitsRequest({.slot = *sequence->slot});
      AddDecode(batch, *sequence);
    }
    batch.AddDrafts(0, 2, 2, {});
    ASSERT_EQ(Finish(batch).rows.size(), 4u);
  }
  EXPECT_EQ(allocations.count(), 0);
}

TEST_F(BatchInProgressTest, CheckInvariantsFindsTwoRowsOfOneSlotAndTooManyTokens) {
  BatchInProgress batch = Make();
  SequenceState& sequence = Run({.prompt = std::vector<int32_t>(12, 1)});
  SequenceState& second = Run({.prompt = std::vector<int32_t>(12, 1)});
  batch.Begin();
  AddChunk(batch, sequence, 12);
  batch.CheckInvariants();
  EXPECT_DEATH((AddDecode(batch, sequence), batch.CheckInvariants()), "3: slot 0");
  EXPECT_DEATH((AddChunk(batch, second, 12), batch.CheckInvariants()), "2");
}

}  // namespace
}  // namespace reprise
