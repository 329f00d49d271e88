#include "reprise/runner/slots/refill.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/runner/testing/refill_memory.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Writes a delta by hand into a RefillMemory, then runs a refill.
class RefillTest : public ::testing::Test {
 protected:
  explicit RefillTest(const RefillShape& shape = {}) : memory_(shape) { memory_.PoisonArrays(); }

  void Join(StepJoin join) { args().delta.joins[counts_.num_joins++] = join; }
  void Leave(int32_t slot) { args().delta.leaves[counts_.num_leaves++] = slot; }
  void Update(int32_t slot, int32_t column, int32_t block, int32_t group = 0) {
    args().delta.updates[counts_.num_updates++] = {slot, column, block, group};
  }
  void Row(StepRow row) { args().delta.rows[counts_.num_rows++] = row; }
  // Adds a row that brings its tokens.
  void PromptRow(int32_t slot, const std::vector<int32_t>& tokens, int32_t samples = 1) {
    Row({.slot = slot,
         .query_len = static_cast<int32_t>(tokens.size()),
         .first_host_token = counts_.num_host_tokens,
         .samples = samples});
    for (int32_t token : tokens) args().delta.host_tokens[counts_.num_host_tokens++] = token;
  }

  void Refill(int padded_num_rows, int padded_num_tokens) {
    *args().delta.counts = counts_;
    args().padded_num_rows = padded_num_rows;
    args().padded_num_tokens = padded_num_tokens;
    RefillOnHost(args());
    counts_ = {};
  }
  // Scores the newest row.
  void Score(StepRowScore score) {
    args().has_scored_rows = true;
    args().delta.scores[counts_.num_rows - 1] = score;
  }

  RefillArgs& args() { return memory_.args(); }
  const StepArrays& arrays() { return memory_.args().arrays; }
  const SlotState& slots() { return memory_.args().slots; }
  int num_faults() { return *arrays().num_faults; }

  template <typename T>
  std::vector<T> First(const T* array, int count) {
    return std::vector<T>(array, array + count);
  }

  RefillMemory memory_;  // 8 slots with 6 blocks of 4 tokens, 40 blocks, 8 rows, 32 tokens
  StepDeltaCounts counts_;
};

TEST_F(RefillTest, JoinSetsDraftedLen) {
  std::vector<int32_t> drafted_len(slots().num_slots, -7);
  args().slots.drafted_len = drafted_len.data();
  Join({.slot = 0, .seq_len = 6, .num_undrafted = 2});
  Join({.slot = 1, .seq_len = 6});
  Join({.slot = 2, .seq_len = 6, .num_undrafted = 7});
  Join({.slot = 3, .seq_len = 6, .num_undrafted = -1});
  Refill(1, 1);
  EXPECT_THAT(First(drafted_len.data(), 4), ElementsAre(4, 6, -7, -7));
  EXPECT_EQ(num_faults(), 2);
}

TEST_F(RefillTest, DecodeAfterAPromptReadsTheLastToken) {
  Join({.slot = 3, .sample_index = 5});
  Update(3, 0, 7);
  Update(3, 1, 9);
  PromptRow(3, {11, 12, 13, 14, 15});
  Refill(2, 8);
  EXPECT_THAT(First(arrays().token_ids, 8), ElementsAre(11, 12, 13, 14, 15, 0, 0, 0));
  EXPECT_THAT(First(arrays().positions, 8), ElementsAre(0, 1, 2, 3, 4, 0, 0, 0));
  // Blocks 7 and 9 of 4 tokens: 7 * 4 = 28, and token 4 at 9 * 4 = 36.
  EXPECT_THAT(First(arrays().slot_mapping, 8), ElementsAre(28, 29, 30, 31, 36, -1, -1, -1));
  EXPECT_THAT(First(arrays().query_start_loc, 3), ElementsAre(0, 5, 5));
  EXPECT_THAT(First(arrays().seq_lens, 2), ElementsAre(5, 0));
  EXPECT_THAT(First(arrays().table_row, 2), ElementsAre(3, 0));
  EXPECT_THAT(First(arrays().logits_indices, 2), ElementsAre(4, 0));
  EXPECT_THAT(First(arrays().sample_slot, 2), ElementsAre(3, -1));
  EXPECT_EQ(num_faults(), 0);
  EXPECT_EQ(slots().seq_len[3], 5);
  EXPECT_EQ(slots().sample_index[3], 5);

  slots().last_token[3] = 77;  // like sampling
  Row({.slot = 3});
  Refill(2, 2);
  EXPECT_THAT(First(arrays().token_ids, 2), ElementsAre(77, 0));
  EXPECT_THAT(First(arrays().positions, 2), ElementsAre(5, 0));
  EXPECT_THAT(First(arrays().slot_mapping, 2), ElementsAre(37, -1));
  EXPECT_EQ(slots().seq_len[3], 6);
}

TEST_F(RefillTest, CommonPrefixLenIsCopiedFromTheDelta) {
  Join({.slot = 0, .seq_len = 8});
  Update(0, 2, 7);
  Row({.slot = 0});
  counts_.common_prefix_len = 8;
  Refill(2, 2);
  EXPECT_EQ(*arrays().common_prefix_len, 8);
  Row({.slot = 0});
  Refill(2, 2);
  EXPECT_EQ(*arrays().common_prefix_len, 0);
  counts_.common_prefix_len = -8;
  Refill(2, 2);
  EXPECT_EQ(*arrays().common_prefix_len, 0);
}

TEST_F(RefillTest, SlotMayLeaveAndBeJoinedInOneDelta) {
  Join({.slot = 2, .seq_len = 4, .sampling = {.temperature = 1, .seed = 9}});
  Update(2, 0, 5);
  Update(2, 5, 6);
  Refill(1, 1);
  EXPECT_EQ(slots().seq_len[2], 4);

  Leave(2);
  Join({.slot = 2, .sampling = {.top_k = 3}});
  Update(2, 0, 8);
  PromptRow(2, {1});
  Refill(1, 1);
  const int32_t* table_row = slots().block_table + 2 * slots().block_table_stride;
  EXPECT_THAT(First(table_row, 6), ElementsAre(8, 0, 0, 0, 0, 0));  // no stale column
  EXPECT_EQ(slots().seq_len[2], 1);
  EXPECT_EQ(slots().sampling[2].temperature, 0);
  EXPECT_EQ(slots().sampling[2].top_k, 3);
}

TEST_F(RefillTest, LastUpdateOfAnEntryWins) {
  for (int block : {4, 9, 6}) Update(1, 2, block);
  Refill(1, 1);
  EXPECT_EQ(slots().block_table[slots().block_table_stride + 2], 6);
  Update(1, 2, 0);  // sets the null block
  Refill(1, 1);
  EXPECT_EQ(slots().block_table[slots().block_table_stride + 2], 0);
}

TEST_F(RefillTest, RowThatIsNotServedEqualsAPaddedRow) {
  Join({.slot = 0});
  Join({.slot = 1});
  Join({.slot = 2});
  Update(0, 0, 5);
  Update(2, 0, 6);
  PromptRow(0, {10, 11});
  PromptRow(1, {20});  // no block: its entry is the null block
  PromptRow(2, {30}, /*samples=*/0);
  Refill(4, 4);
  EXPECT_EQ(num_faults(), 1);
  EXPECT_THAT(First(arrays().query_start_loc, 5), ElementsAre(0, 2, 2, 3, 3));
  EXPECT_THAT(First(arrays().seq_lens, 4), ElementsAre(2, 0, 1, 0));
  EXPECT_THAT(First(arrays().table_row, 4), ElementsAre(0, 0, 2, 0));
  EXPECT_THAT(First(arrays().sample_slot, 4), ElementsAre(0, -1, -1, -1));
  EXPECT_THAT(First(arrays().token_ids, 4), ElementsAre(10, 11, 30, 0));
  EXPECT_EQ(slots().seq_len[1], 0);
}

TEST_F(RefillTest, EachRowThatIsNotServedHasItsRowFault) {
  Join({.slot = 0});
  Join({.slot = 1, .seq_len = 24});  // as many tokens as the table holds
  Join({.slot = 2});                 // without a block
  Join({.slot = 3});
  Update(0, 0, 5);
  Update(3, 0, 6);
  Row({.slot = 0});
  Row({.slot = 0});
  Row({.slot = 99});
  Row({.slot = 1});
  Row({.slot = 2});
  Row({.slot = 3, .query_len = 2, .first_host_token = 31});  // beyond the end of host_tokens
  Refill(8, 8);
  const auto fault = [](RowFault fault) { return static_cast<int32_t>(fault); };
  EXPECT_THAT(First(arrays().row_faults, 8),
              ElementsAre(0, fault(RowFault::kTableRow), fault(RowFault::kTableRow),
                          fault(RowFault::kLength), fault(RowFault::kNoBlock),
                          fault(RowFault::kToken), 0, 0));
  EXPECT_EQ(num_faults(), 5);

  PromptRow(0, {1, 2});
  PromptRow(3, {1, 2});
  Refill(2, 3);
  EXPECT_THAT(First(arrays().row_faults, 2), ElementsAre(0, fault(RowFault::kNoRoom)));
}

TEST_F(RefillTest, TheSecondRowOfASlotIsInertEvenIfTheFirstWasBad) {
  Join({.slot = 0});
  Update(0, 0, 5);
  Row({.slot = 0, .query_len = 0});
  PromptRow(0, {10});
  Refill(2, 2);
  EXPECT_EQ(num_faults(), 2);
  EXPECT_THAT(First(arrays().query_start_loc, 3), Each(0));
}

TEST_F(RefillTest, RowsAfterTheFirstThatDoesNotFitAreInert) {
  for (int slot : {0, 1, 2}) {
    Join({.slot = slot});
    Update(slot, 0, slot + 1);
  }
  PromptRow(0, {1, 2});
  PromptRow(1, {3, 4, 5});
  PromptRow(2, {6});  // would fit, but follows a row that does not fit
  Refill(3, 4);
  EXPECT_EQ(num_faults(), 2);
  EXPECT_THAT(First(arrays().query_start_loc, 4), ElementsAre(0, 2, 2, 2));
  EXPECT_THAT(First(arrays().token_ids, 4), ElementsAre(1, 2, 0, 0));
  EXPECT_EQ(slots().seq_len[2], 0);
}

class RefillScoresTest : public RefillTest {
 protected:
  RefillScoresTest() : RefillTest({.max_earlier_logits = 10}) {
    for (int slot : {0, 1, 2, 3}) {
      Join({.slot = slot});
      for (int column : {0, 1}) Update(slot, column, 1 + 2 * slot + column);
    }
    Refill(1, 1);
    memory_.PoisonArrays();
  }
};

TEST_F(RefillScoresTest, EarlierTokensFollowThePaddedRowsRowByRow) {
  PromptRow(2, {20, 21, 22}, /*samples=*/0);
  Score({.all_logits = 1, .next_token = 23});
  PromptRow(0, {10, 11});
  Score({});
  PromptRow(3, {30});
  Score({.all_logits = 1});
  PromptRow(1, {40, 41, 42, 43});
  Score({.all_logits = 1});
  args().padded_num_earlier_logits = 7;
  Refill(6, 12);
  EXPECT_EQ(num_faults(), 0);
  EXPECT_THAT(First(arrays().token_ids, 12),
              ElementsAre(20, 21, 22, 10, 11, 30, 40, 41, 42, 43, 0, 0));
  // Four rows and two padded rows, then tokens 0 and 1 of the first row and three tokens of the
  // last row.
  EXPECT_THAT(First(arrays().logits_indices, 13),
              ElementsAre(2, 4, 5, 9, 0, 0, /**/ 0, 1, 6, 7, 8, 0, 0));
  EXPECT_THAT(First(arrays().scored_slot, 13),
              ElementsAre(2, -1, -1, -1, -1, -1, /**/ 2, 2, 1, 1, 1, -1, -1));
  EXPECT_THAT(First(arrays().scored_token, 13),
              ElementsAre(23, -1, -1, -1, -1, -1, /**/ 21, 22, 41, 42, 43, -1, -1));
  EXPECT_THAT(First(arrays().sample_slot, 6), ElementsAre(-1, 0, 3, 1, -1, -1));
  // Entries after the padded sizes are not written.
  EXPECT_THAT(First(arrays().logits_indices + 13, 5), Each(0x5a5a5a5a));
}

TEST_F(RefillScoresTest, AStepWithoutScoredRowsWritesOnlyItsRows) {
  PromptRow(0, {10, 11});
  args().delta.scores[0] = {.all_logits = 1, .next_token = 3};  // left over from an earlier step
  Refill(2, 4);
  EXPECT_EQ(num_faults(), 0);
  EXPECT_THAT(First(arrays().logits_indices, 2), ElementsAre(1, 0));
  EXPECT_THAT(First(arrays().logits_indices + 2, 16), Each(0x5a5a5a5a));
  EXPECT_THAT(First(arrays().scored_slot, 18), Each(0x5a5a5a5a));
  EXPECT_THAT(First(arrays().scored_token, 18), Each(0x5a5a5a5a));
}

TEST_F(RefillScoresTest, AKnownNextTokenNeedsNoEarlierLogits) {
  PromptRow(0, {10, 11}, /*samples=*/0);
  Score({.next_token = 12});
  PromptRow(1, {20, 21}, /*samples=*/1);
  Score({.next_token = 22});  // no effect: this row samples
  Row({.slot = 2, .samples = 0});
  Score({.next_token = 32});
  Refill(4, 8);
  EXPECT_EQ(num_faults(), 0);
  EXPECT_THAT(First(arrays().scored_slot, 4), ElementsAre(0, -1, 2, -1));
  EXPECT_THAT(First(arrays().scored_token, 4), ElementsAre(12, -1, 32, -1));
}

TEST_F(RefillScoresTest, RowsWhoseEarlierLogitsDoNotFitAreInertAndCounted) {
  PromptRow(0, {10, 11});
  Score({.all_logits = 1});
  PromptRow(1, {20, 21, 22});
  Score({.all_logits = 1});
  PromptRow(2, {30, 31});
  Score({.all_logits = 1});  // would fit, but follows a row that does not fit
  PromptRow(3, {40, 41});
  Score({});
  args().padded_num_earlier_logits = 2;
  Refill(4, 16);
  EXPECT_EQ(num_faults(), 2);
  EXPECT_THAT(First(arrays().row_faults, 4), ElementsAre(0, static_cast<int>(RowFault::kNoRoom),
                                                         static_cast<int>(RowFault::kNoRoom), 0));
  EXPECT_THAT(First(arrays().token_ids, 5), ElementsAre(10, 11, 40, 41, 0));
  EXPECT_THAT(First(arrays().logits_indices, 6), ElementsAre(1, 0, 0, 3, /**/ 0, 0));
  EXPECT_THAT(First(arrays().scored_token, 6), ElementsAre(-1, -1, -1, -1, /**/ 11, -1));
  EXPECT_EQ(slots().seq_len[1], 0);
  EXPECT_EQ(slots().seq_len[3], 2);
}

TEST_F(RefillScoresTest, RejectsEarlierLogitsWithoutCapacityOrScores) {
  args().padded_num_earlier_logits = 1;
  EXPECT_EQ(CheckRefill(args()).message(), "padded_num_earlier_logits: expected 0 to 0, got 1");
  args().has_scored_rows = true;
  EXPECT_EQ(CheckRefill(args()), absl::OkStatus());
  args().padded_num_earlier_logits = 11;
  EXPECT_EQ(CheckRefill(args()).message(), "padded_num_earlier_logits: expected 0 to 10, got 11");
  args().padded_num_earlier_logits = 0;
  args().delta.scores = nullptr;
  EXPECT_EQ(CheckRefill(args()).message(), "delta.scores: expected an array, got none");
}

// Steps with drafts that may be trees, with space for the earlier logits of 8 tokens.
class RefillTreesTest : public RefillScoresTest {
 protected:
  RefillTreesTest() {
    args().has_drafts = true;
    args().arrays.sample_slot = sample_slot_;
    args().arrays.sample_offset = sample_offset_;
    args().arrays.first_verified = first_verified_;
    args().arrays.num_proposed = num_proposed_;
    args().arrays.parents = parents_;
    args().arrays.tail_mask = tail_mask_;
    args().delta.host_parents = host_parents_;
    std::fill_n(parents_, 32, -9);
    for (const int32_t slot : {1, 2}) {
      Join({.slot = slot, .seq_len = 2});
      Update(slot, 0, slot);
      Update(slot, 1, slot + 2);
    }
  }

  void DraftsRow(int32_t slot, int32_t num_drafts, int32_t first_host_token) {
    Row({.slot = slot,
         .query_len = 1 + num_drafts,
         .first_host_token = first_host_token,
         .samples = kVerifiesDrafts});
    Score({.all_logits = 1});
  }

  int32_t sample_slot_[40] = {};
  int32_t sample_offset_[40] = {};
  int32_t first_verified_[8] = {};
  int32_t num_proposed_[8] = {};
  int32_t parents_[32] = {};
  uint64_t tail_mask_[32] = {};
  int32_t host_parents_[32] = {};
};

TEST_F(RefillTreesTest, ParentsComeFromTheHostOrTheProposedTree) {
  const int32_t tree[] = {0, 0, 1};
  args().tree = tree;
  args().tree_size = 3;
  args().padded_num_earlier_logits = 8;
  const int32_t given[] = {0, 1, 0, 2};
  std::copy_n(given, 4, host_parents_);
  counts_.num_host_tokens = 4;
  DraftsRow(1, 4, 0);
  DraftsRow(2, 3, -1);
  Refill(3, 12);
  ASSERT_EQ(num_faults(), 0);
  EXPECT_THAT(First(parents_, 10), ElementsAre(-1, 0, 1, 0, 2, -1, 0, 0, 1, -9));
  EXPECT_THAT(First(num_proposed_, 3), ElementsAre(0, 3, 0));
  EXPECT_THAT(First(first_verified_, 3), ElementsAre(3, 7, -1));
}

TEST_F(RefillTreesTest, DraftLogitsAreResetAndOutputIsWritten) {
  std::vector<int32_t> draft_logits(32, 7);
  int32_t output = -9;
  args().arrays.draft_logits = draft_logits.data();
  args().arrays.output = &output;
  args().output = 3;
  args().padded_num_earlier_logits = 8;
  DraftsRow(1, 3, -1);
  Refill(3, 12);
  ASSERT_EQ(num_faults(), 0);
  EXPECT_EQ(output, 3);
  EXPECT_THAT(First(draft_logits.data(), 5), ElementsAre(-1, -1, -1, -1, 7));
  args().output = 0;
  Refill(3, 12);
  EXPECT_EQ(output, 0);
}

TEST_F(RefillTreesTest, InvalidParentsBecomeThePreviousNode) {
  args().padded_num_earlier_logits = 8;
  const int32_t given[] = {1, -1, 2, 99};
  std::copy_n(given, 4, host_parents_);
  counts_.num_host_tokens = 4;
  DraftsRow(1, 4, 0);
  DraftsRow(2, 3, -1);  // without a tree, the drafts are a chain
  Refill(2, 12);
  EXPECT_THAT(First(parents_, 9), ElementsAre(-1, 0, 1, 2, 3, -1, 0, 1, 2));
}

TEST_F(RefillTreesTest, TreesNeedTheirArrays) {
  args().delta.host_parents = nullptr;
  args().has_scored_rows = true;
  EXPECT_THAT(std::string(CheckRefill(args()).message()), testing::HasSubstr("delta.host_parents"));
  args().delta.host_parents = host_parents_;
  args().arrays.parents = nullptr;
  EXPECT_THAT(std::string(CheckRefill(args()).message()), testing::HasSubstr("arrays.parents"));
}

TEST_F(RefillTest, PositionsEndWithTheTable) {
  Join({.slot = 4, .seq_len = 23});  // 6 blocks of 4: one more token fits
  Update(4, 5, 3);
  PromptRow(4, {1});
  Refill(1, 1);
  EXPECT_EQ(num_faults(), 0);
  EXPECT_EQ(arrays().slot_mapping[0], 3 * 4 + 3);
  PromptRow(4, {2});
  Refill(1, 1);
  EXPECT_EQ(num_faults(), 1);
  EXPECT_EQ(slots().seq_len[4], 24);
}

TEST_F(RefillTest, EntriesBeyondThePaddedSizesAreNotWritten) {
  Join({.slot = 0});
  Update(0, 0, 5);
  PromptRow(0, {1});
  Refill(2, 3);
  EXPECT_THAT(First(arrays().seq_lens + 2, 6), Each(0x5a5a5a5a));
  EXPECT_THAT(First(arrays().token_ids + 3, 29), Each(0x5a5a5a5a));
}

TEST_F(RefillTest, LargeBlocksDoNotOverflowTheSlotMapping) {
  args().num_blocks = 1 << 30;
  Join({.slot = 0});
  Update(0, 0, (1 << 30) - 1);
  PromptRow(0, {1, 2});
  Refill(1, 2);
  EXPECT_EQ(arrays().slot_mapping[1], ((int64_t{1} << 30) - 1) * 4 + 1);
}

TEST_F(RefillTest, EachLiveCountResetsThePadding) {
  for (int slot = 0; slot < 8; ++slot) {
    Join({.slot = slot});
    for (int column = 0; column < 6; ++column) Update(slot, column % 6, 1 + slot);
    if (counts_.num_updates == 24) Refill(1, 1);
  }
  Refill(1, 1);
  for (int live : {8, 1, 5, 0, 7, 2, 3, 6, 4}) {
    for (int slot = 0; slot < live; ++slot) Row({.slot = slot});
    Refill(8, 8);
    EXPECT_EQ(num_faults(), 0);
    for (int r = 0; r < 8; ++r) {
      EXPECT_EQ(arrays().query_start_loc[r + 1], std::min(r + 1, live));
      EXPECT_EQ(arrays().seq_lens[r] > 0, r < live);
      EXPECT_EQ(arrays().sample_slot[r], r < live ? r : -1);
      EXPECT_EQ(arrays().slot_mapping[r] >= 0, r < live);
    }
  }
}

TEST_F(RefillTest, CountsBeyondCapacityAreClampedAndCounted) {
  std::fill_n(args().delta.leaves, 8, 0);
  counts_ = {.num_leaves = 10, .num_joins = -5, .num_updates = -1, .num_rows = -1};
  Refill(4, 4);
  EXPECT_EQ(num_faults(), 2);  // leaves 9 and 10
  EXPECT_THAT(First(arrays().seq_lens, 4), Each(0));
}

// Full attention, a window of 6 tokens, chunks of 8 tokens, and an encoder's keys.
class RefillGroupsTest : public RefillTest {
 protected:
  RefillGroupsTest()
      : RefillTest({.groups = {{},
                               {.retention = KvRetention::kSlidingWindow, .span = 6},
                               {.retention = KvRetention::kChunkedLocal, .span = 8},
                               {.retention = KvRetention::kCross}}}) {}

  std::vector<int64_t> Slots(int group, int count) {
    return First<int64_t>(arrays().group_slots(group), count);
  }
};

TEST_F(RefillGroupsTest, EachGroupWritesIntoItsOwnBlocks) {
  Join({.slot = 3, .num_encoder_tokens = 9});
  for (int group : {0, 1, 2, 3}) Update(3, 0, 10 + group, group);
  PromptRow(3, {7, 8});
  Refill(2, 3);
  EXPECT_EQ(num_faults(), 0);
  EXPECT_THAT(Slots(0, 3), ElementsAre(40, 41, -1));
  EXPECT_THAT(Slots(1, 3), ElementsAre(44, 45, -1));
  EXPECT_THAT(Slots(2, 3), ElementsAre(48, 49, -1));
  EXPECT_THAT(Slots(3, 3), Each(-1));  // rows do not write the encoder's keys
  EXPECT_THAT(First(arrays().seq_lens, 2), ElementsAre(2, 0));
  EXPECT_THAT(First(arrays().encoder_lens, 2), ElementsAre(9, 0));
}

TEST_F(RefillGroupsTest, ARowNeedsItsBlockInEveryGroupButCrossGroups) {
  for (int missing : {0, 1, 2}) {
    Leave(0);
    Join({.slot = 0});
    for (int group : {0, 1, 2}) {
      if (group != missing) Update(0, 0, 5 + group, group);
    }
    PromptRow(0, {1});
    Refill(1, 1);
    EXPECT_EQ(num_faults(), 1) << "group " << missing;
    EXPECT_EQ(slots().seq_len[0], 0);
  }
}

TEST_F(RefillGroupsTest, BlocksThatLeftTheWindowOrTheChunkMayBeNull) {
  // Positions 17 and 18 are written. The window of position 18 begins at 13 (column 3), its chunk
  // at 16.
  Join({.slot = 1, .seq_len = 17});
  for (int group : {0, 1, 2}) Update(1, 4, 20 + group, group);
  PromptRow(1, {1, 2});
  Refill(1, 2);
  EXPECT_EQ(num_faults(), 0);
  EXPECT_THAT(Slots(1, 2), ElementsAre(21 * 4 + 1, 21 * 4 + 2));
}

TEST_F(RefillGroupsTest, PromptTokensOlderThanTheWindowMayStayUnwritten) {
  // 16 tokens. The last query, at position 15, reads positions 10 to 15 in its window and 8 to 15
  // in its chunk.
  Join({.slot = 2});
  for (int column : {0, 1, 2, 3}) Update(2, column, 10 + column, 0);
  for (int column : {2, 3}) Update(2, column, 20 + column, 1);
  for (int column : {2, 3}) Update(2, column, 30 + column, 2);
  PromptRow(2, std::vector<int32_t>(16, 9));
  Refill(1, 16);
  EXPECT_EQ(num_faults(), 0);
  EXPECT_THAT(Slots(0, 16), Each(::testing::Ge(40)));
  for (int group : {1, 2}) {
    EXPECT_THAT(First<int64_t>(arrays().group_slots(group), 8), Each(-1));
    EXPECT_EQ(arrays().group_slots(group)[8], (10 + 10 * group + 2) * 4);
  }

  // One null column more than the window allows.
  Leave(2);
  Join({.slot = 2});
  for (int group : {0, 1, 2}) {
    for (int column : {0, 1, 2, 3}) Update(2, column, 20 + column, group);
  }
  Update(2, 2, 0, 1);
  PromptRow(2, std::vector<int32_t>(16, 9));
  Refill(1, 16);
  EXPECT_EQ(num_faults(), 1);
}

TEST_F(RefillGroupsTest, ASlotThatLeavesIsClearedInEveryGroup) {
  Join({.slot = 4, .num_encoder_tokens = 3});
  for (int group : {0, 1, 2, 3}) Update(4, 5, 30, group);
  Refill(1, 1);
  for (int group : {0, 1, 2, 3}) EXPECT_EQ(slots().table_row(group, 4)[5], 30);
  EXPECT_EQ(slots().encoder_len[4], 3);
  Leave(4);
  Refill(1, 1);
  for (int group : {0, 1, 2, 3}) EXPECT_THAT(First(slots().table_row(group, 4), 6), Each(0));
  EXPECT_EQ(slots().encoder_len[4], 0);
}

TEST_F(RefillGroupsTest, UpdatesOfUnknownGroupsAreSkippedAndCounted) {
  Update(0, 0, 5, -1);
  Update(0, 0, 5, 4);
  Join({.slot = 0, .num_encoder_tokens = 25});  // 6 blocks of 4 hold 24
  Join({.slot = 1, .num_encoder_tokens = -1});
  Refill(1, 1);
  EXPECT_EQ(num_faults(), 4);
  for (int group : {0, 1, 2, 3}) EXPECT_EQ(slots().table_row(group, 0)[0], 0);
}

class RefillPositionsTest : public RefillTest {
 protected:
  RefillPositionsTest() : RefillTest({.num_position_dims = 3}) {}
};

TEST_F(RefillPositionsTest, PromptsUseGivenPositionsAndDecodesAddPositionDelta) {
  const StepArrays& arrays = memory_.args().arrays;
  const auto of_dim = [&](int dim, int count) {
    return First(arrays.model_positions + dim * arrays.max_tokens, count);
  };
  // A text token, an image of 2 x 2 tokens, and the next text token.
  Join({.slot = 2, .position_delta = -2});
  for (int column : {0, 1, 2}) Update(2, column, 7 + column);
  const std::vector<std::vector<int32_t>> given = {
      {0, 1, 1, 1, 1, 3}, {0, 1, 1, 2, 2, 3}, {0, 1, 2, 1, 2, 3}};
  PromptRow(2, {10, 11, 12, 13, 14, 15});
  for (int dim = 0; dim < 3; ++dim) {
    std::copy(given[dim].begin(), given[dim].end(),
              memory_.args().delta.host_positions + dim * arrays.max_tokens);
  }
  counts_.has_positions = 1;
  Refill(1, 8);
  EXPECT_EQ(num_faults(), 0);
  EXPECT_THAT(of_dim(0, 8), ElementsAre(0, 1, 1, 1, 1, 3, 0, 0));
  EXPECT_THAT(of_dim(1, 8), ElementsAre(0, 1, 1, 2, 2, 3, 0, 0));
  EXPECT_THAT(of_dim(2, 8), ElementsAre(0, 1, 2, 1, 2, 3, 0, 0));
  // Attention's positions count keys.
  EXPECT_THAT(First(arrays.positions, 8), ElementsAre(0, 1, 2, 3, 4, 5, 0, 0));

  for (int step = 0; step < 3; ++step) {
    Row({.slot = 2});
    Refill(1, 2);
    for (int dim = 0; dim < 3; ++dim) EXPECT_THAT(of_dim(dim, 2), ElementsAre(4 + step, 0));
    EXPECT_THAT(First(arrays.positions, 2), ElementsAre(6 + step, 0));
  }
  // Without a position_delta, the next sequence in the slot begins at position 0.
  Leave(2);
  Join({.slot = 2});
  Update(2, 0, 7);
  PromptRow(2, {10, 11});
  Refill(1, 2);
  for (int dim = 0; dim < 3; ++dim) EXPECT_THAT(of_dim(dim, 2), ElementsAre(0, 1));
}

TEST_F(RefillPositionsTest, JoinsThatWouldPassAnInt32AreSkippedAndCounted) {
  Join({.slot = 0, .position_delta = INT32_MAX - 23});  // 6 blocks of 4 hold 24
  Join({.slot = 1, .position_delta = INT32_MIN});
  Join({.slot = 2, .position_delta = INT32_MAX - 24});
  Refill(1, 1);
  EXPECT_EQ(num_faults(), 2);
  EXPECT_EQ(slots().position_delta[2], INT32_MAX - 24);
}

TEST_F(RefillPositionsTest, SeveralDimensionsNeedTheirArrays) {
  RefillArgs args = memory_.args();
  EXPECT_TRUE(CheckRefill(args).ok());
  args.arrays.model_positions = nullptr;
  EXPECT_EQ(CheckRefill(args).code(), absl::StatusCode::kInvalidArgument);
  args.arrays.num_position_dims = 1;
  EXPECT_TRUE(CheckRefill(args).ok());
  args.arrays.num_position_dims = 0;
  EXPECT_EQ(CheckRefill(args).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace reprise
