#include "reprise/attention/speculation/draft_rows.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/speculation/missing_token.h"
#include "reprise/attention/testing/draft_definitions.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/random_cases.h"
#include "reprise/attention/testing/speculation/draft_cases.h"
#include "reprise/attention/testing/speculation/draft_reference.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> Ints(const int32_t* data, int count) { return {data, data + count}; }

// Two slots with tables {3, 1, 4} and {2, 6, 5}, block_size 4, and histories 100, 101, ... and 200,
// 201, ... The rows are slot 1 at position 9, slot 0 at position 7, and a padded row.
class TwoSequences : public ::testing::Test {
 protected:
  static constexpr int kRows = 3;
  static constexpr int kDrafts = 2;

  TwoSequences() {
    for (int i = 0; i < 12; ++i) {
      history_[i] = 100 + i;
      history_[12 + i] = 200 + i;
    }
    args_.rows.table = {.entries = table_,
                        .row_stride = 3,
                        .num_tables = 2,
                        .max_blocks = 3,
                        .block_size = 4,
                        .num_blocks = 7};
    args_.rows.num_rows = kRows;
    args_.rows.arrays = {.token_ids = ids_,
                         .positions = positions_,
                         .slot_mapping = slots_,
                         .query_start_loc = starts_,
                         .seq_lens = seq_lens_,
                         .table_row = rows_,
                         .logits_indices = logits_,
                         .context_lens = contexts_};
    args_.sample_slot = sample_slot_;
    args_.sample_offset = sample_offset_;
    args_.encoder_lens = encoder_lens_;
    args_.common_prefix_len = &common_prefix_len_;
    args_.num_logits = kRows;
    args_.drafted_len = drafted_len_;
    args_.history = {history_, 12};
    args_.step = {.token_ids = token_ids_,
                  .query_start_loc = query_start_loc_,
                  .context_lens = context_lens_,
                  .slot_of_row = slot_of_row_,
                  .num_proposed = num_proposed_,
                  .num_tokens = 6};
    args_.chosen = chosen_;
    args_.max_drafts = kDrafts;
  }

  void Run(int pass) {
    args_.pass = pass;
    args_.rows.num_tokens = NumDraftTokens(pass, kRows, kDrafts);
    ASSERT_EQ(CheckDraftRows(args_), absl::OkStatus());
    DraftRowsOnHost(args_);
  }

  void Choose(std::vector<int32_t> chosen) { std::copy(chosen.begin(), chosen.end(), chosen_); }

  std::vector<int64_t> Slots(int count) const { return {slots_, slots_ + count}; }

  int32_t table_[6] = {3, 1, 4, 2, 6, 5};
  int32_t drafted_len_[2] = {6, 8};
  int32_t history_[24];
  int32_t token_ids_[6] = {209, 0, 0, 107, 0, 0};
  int32_t query_start_loc_[kRows + 1] = {0, 3, 6, 6};
  int32_t context_lens_[kRows] = {9, 7, 0};
  int32_t slot_of_row_[kRows] = {1, 0, 0};
  int32_t num_proposed_[kRows] = {2, 2, 0};
  int32_t chosen_[kRows] = {-5, -5, -5};
  int32_t ids_[9], positions_[9], starts_[kRows + 1], seq_lens_[kRows], contexts_[kRows],
      encoder_lens_[kRows], rows_[kRows], logits_[kRows], sample_slot_[kRows],
      sample_offset_[kRows];
  int64_t slots_[9];
  int32_t common_prefix_len_ = -9;
  DraftRowsArgs args_;
};

// The tree of the header, for a sequence at position 9 in blocks 2, 3, 5, 6, with block_size 4.
TEST(DraftTreeRowsTest, FeedsALevelPerPassWithPathMasks) {
  int32_t table[] = {2, 3, 5, 6};
  int32_t drafted_len = 9;
  int32_t history[16] = {};
  int32_t token_ids[6] = {77, 0, 0, 0, 0, 0};
  int32_t query_start_loc[2] = {0, 6};
  int32_t context_len = 9;
  int32_t slot = 0;
  int32_t num_proposed = 5;
  int32_t parents[6] = {-1, 0, 0, 1, 1, 2};
  const int32_t ranks[] = {0, 1, 0, 1, 0};
  int32_t chosen[4] = {};
  int32_t ids[6], positions[6], starts[2], seq_lens[1], contexts[1], encoder_lens[1], rows[1],
      logits[2], sample_slot[2], sample_offset[2], tail_len[1], common_prefix_len, row_faults[1];
  int64_t slots[6];
  uint64_t tail_mask[6] = {};
  DraftRowsArgs args;
  args.rows.table = {.entries = table,
                     .row_stride = 4,
                     .num_tables = 1,
                     .max_blocks = 4,
                     .block_size = 4,
                     .num_blocks = 7};
  args.rows.num_rows = 1;
  args.rows.arrays = {.token_ids = ids,
                      .positions = positions,
                      .slot_mapping = slots,
                      .query_start_loc = starts,
                      .seq_lens = seq_lens,
                      .table_row = rows,
                      .logits_indices = logits,
                      .row_faults = row_faults,
                      .context_lens = contexts};
  args.sample_slot = sample_slot;
  args.sample_offset = sample_offset;
  args.encoder_lens = encoder_lens;
  args.common_prefix_len = &common_prefix_len;
  args.tail_len = tail_len;
  args.tail_mask = tail_mask;
  args.num_logits = 2;
  args.drafted_len = &drafted_len;
  args.history = {history, 16};
  args.step = {.token_ids = token_ids,
               .query_start_loc = query_start_loc,
               .context_lens = &context_len,
               .slot_of_row = &slot,
               .num_proposed = &num_proposed,
               .parents = {.nodes = parents},
               .num_tokens = 6};
  args.chosen = chosen;
  args.max_drafts = 5;
  args.level = {
      .num_levels = 2, .first_before = 0, .first = 0, .end = 1, .ranks = ranks, .rank_stride = 2};

  args.rows.num_tokens = NumDraftTokens(0, 1, 5);
  ASSERT_EQ(CheckDraftRows(args), absl::OkStatus());
  DraftRowsOnHost(args);
  EXPECT_THAT(Ints(ids, 2), ElementsAre(77, 0));
  EXPECT_EQ(tail_len[0], 0) << "the first pass is a chain";

  // rank_stride is 2: chosen[2] belongs to the second rank.
  chosen[0] = 50;
  chosen[2] = 51;
  args.pass = 1;
  args.level.first = 1;
  args.level.end = 3;
  args.rows.num_tokens = NumDraftTokens(1, 1, 5, /*width=*/2);
  ASSERT_EQ(CheckDraftRows(args), absl::OkStatus());
  DraftRowsOnHost(args);
  EXPECT_THAT(Ints(ids, 2), ElementsAre(50, 51));
  EXPECT_THAT(Ints(positions, 2), ElementsAre(10, 10));
  EXPECT_THAT(std::vector<int64_t>(slots, slots + 2), ElementsAre(22, 23));
  EXPECT_EQ(seq_lens[0], 12);
  EXPECT_EQ(contexts[0], 10);
  EXPECT_EQ(tail_len[0], 3);
  EXPECT_THAT(std::vector<uint64_t>(tail_mask, tail_mask + 2), ElementsAre(0b11, 0b101));
  EXPECT_THAT(Ints(logits, 2), ElementsAre(0, 1));
  EXPECT_THAT(Ints(sample_slot, 2), ElementsAre(0, 0));
  EXPECT_THAT(Ints(sample_offset, 2), ElementsAre(1, 1));
  EXPECT_EQ(drafted_len, 10);
  EXPECT_THAT(Ints(token_ids, 6), ElementsAre(77, 50, 51, 0, 0, 0));

  chosen[0] = 60;  // first child of node 1
  chosen[1] = 61;  // first child of node 2
  chosen[2] = 62;  // second child of node 1
  args.pass = 2;
  args.level.first_before = 1;
  args.level.first = 3;
  args.level.end = 6;
  ASSERT_EQ(CheckDraftRows(args), absl::OkStatus());
  DraftRowsOnHost(args);
  EXPECT_THAT(Ints(token_ids, 6), ElementsAre(77, 50, 51, 60, 62, 61));
  EXPECT_EQ(drafted_len, 11) << "a path has one node of the first level";

  // A row with fewer drafts than the level's nodes is not fed, and its other entries do not change.
  std::fill_n(token_ids + 1, 5, 0);
  num_proposed = 2;
  DraftRowsOnHost(args);
  EXPECT_THAT(Ints(token_ids, 6), ElementsAre(77, 0, 0, 0, 0, 0));
  args.pass = 1;
  args.level.first_before = 0;
  args.level.first = 1;
  args.level.end = 3;
  DraftRowsOnHost(args);
  EXPECT_EQ(seq_lens[0], 0);
  EXPECT_THAT(Ints(sample_slot, 2), ElementsAre(-1, -1));
  EXPECT_THAT(Ints(token_ids, 3), ElementsAre(77, 60, 62));

  const auto refusal = [&] { return std::string(CheckDraftRows(args).message()); };
  args.level.end = 7;
  EXPECT_EQ(refusal(), "level.end: expected 2 to 6, got 7");
  args.level.end = 4;
  EXPECT_EQ(refusal(), "num_logits: expected at least 3, got 2");
  args.tail_mask = nullptr;
  EXPECT_EQ(refusal(), "tail_mask: expected an array, got none");
}

// A sequence at position 9. The device chooses the parents and tokens of each level's nodes.
TEST(DraftTreeRowsTest, NodesMayFollowAnyNodeOfAnEarlierLevel) {
  DraftRowsShape shape = {.num_rows = 1,
                          .num_slots = 1,
                          .max_drafts = 5,
                          .max_blocks = 4,
                          .num_blocks = 7,
                          .pass = 2,
                          .level_starts = {0, 1, 3, 5, 6}};
  BuilderMemory<DraftRowsArgs> memory(
      [&](ArrayCarver& carver) { return CarveDraftRows(shape, carver); });
  Random random(1);
  DraftRowsArgs& args = memory.args();
  DrawDraftRows(random, shape, {}, args);
  const auto set = [](const int32_t* array, std::vector<int32_t> values) {
    std::ranges::copy(values, const_cast<int32_t*>(array));
  };
  set(args.rows.table.entries, {2, 3, 5, 6});
  set(args.step.slot_of_row, {0});
  set(args.step.query_start_loc, {0, 6});
  set(args.step.num_proposed, {5});
  set(args.step.context_lens, {9});
  set(args.step.parents.nodes, {-1, 0, 0, 2, 0, 3});
  set(args.chosen, {60, 61});
  DraftRowsOnHost(args);
  EXPECT_THAT(Ints(args.rows.arrays.token_ids, 2), ElementsAre(60, 61));
  EXPECT_THAT(Ints(args.rows.arrays.positions, 2), ElementsAre(11, 10)) << "depths 2 and 1";
  EXPECT_THAT(Ints(args.sample_offset, 2), ElementsAre(2, 1));
  EXPECT_THAT(std::vector<uint64_t>(args.tail_mask, args.tail_mask + 2),
              ElementsAre(0b1101, 0b10001));
  EXPECT_EQ(args.rows.arrays.seq_lens[0], 14);
  EXPECT_EQ(args.tail_len[0], 5);
  for (const int32_t no_parent : {3, 4, -1}) {
    set(args.step.parents.nodes, {-1, 0, 0, 2, no_parent, 3});
    DraftRowsOnHost(args);
    EXPECT_EQ(args.rows.arrays.seq_lens[0], 0);
    EXPECT_EQ(args.rows.arrays.row_faults[0], static_cast<int32_t>(RowFault::kTree));
  }
}

TEST_F(TwoSequences, BuildsTheRowsOfAStepWithTwoDrafts) {
  Run(0);  // tokens that the draft model has not processed
  EXPECT_THAT(Ints(starts_, 4), ElementsAre(0, 2, 4, 4));
  EXPECT_THAT(Ints(ids_, 9), ElementsAre(208, 209, 106, 107, 0, 0, 0, 0, 0));
  EXPECT_THAT(Ints(positions_, 9), ElementsAre(8, 9, 6, 7, 0, 0, 0, 0, 0));
  EXPECT_THAT(Slots(9), ElementsAre(20, 21, 6, 7, -1, -1, -1, -1, -1));
  EXPECT_THAT(Ints(seq_lens_, 3), ElementsAre(10, 8, 0));
  EXPECT_THAT(Ints(contexts_, 3), ElementsAre(8, 6, 0));
  EXPECT_THAT(Ints(encoder_lens_, 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(Ints(rows_, 3), ElementsAre(1, 0, 0));
  EXPECT_THAT(Ints(logits_, 3), ElementsAre(1, 3, 0));
  EXPECT_THAT(Ints(sample_slot_, 3), ElementsAre(1, 0, -1));
  EXPECT_THAT(Ints(sample_offset_, 3), ElementsAre(0, 0, 0));
  EXPECT_EQ(common_prefix_len_, 0);

  Choose({40, 50, kNotSampled});
  Run(1);  // the first drafts
  EXPECT_THAT(Ints(starts_, 4), ElementsAre(0, 1, 2, 2));
  EXPECT_THAT(Ints(ids_, 3), ElementsAre(40, 50, 0));
  EXPECT_THAT(Ints(positions_, 3), ElementsAre(10, 8, 0));
  EXPECT_THAT(Slots(3), ElementsAre(22, 16, -1));
  EXPECT_THAT(Ints(seq_lens_, 3), ElementsAre(11, 9, 0));
  EXPECT_THAT(Ints(contexts_, 3), ElementsAre(10, 8, 0));
  EXPECT_THAT(Ints(logits_, 3), ElementsAre(0, 1, 0));
  EXPECT_THAT(Ints(sample_slot_, 3), ElementsAre(1, 0, -1));
  EXPECT_THAT(Ints(sample_offset_, 3), ElementsAre(1, 1, 0));
  EXPECT_THAT(Ints(token_ids_, 6), ElementsAre(209, 40, 0, 107, 50, 0));
  EXPECT_THAT(Ints(drafted_len_, 2), ElementsAre(8, 10));  // includes the first pass

  Choose({41, 51, kNotSampled});
  starts_[0] = 77;  // the last pass writes no rows
  Run(2);
  EXPECT_EQ(starts_[0], 77);
  EXPECT_THAT(Ints(token_ids_, 6), ElementsAre(209, 40, 41, 107, 50, 51));
  EXPECT_THAT(Ints(drafted_len_, 2), ElementsAre(9, 11));
}

TEST_F(TwoSequences, RowEndsAfterItsLastDraftAndOtherRowsContinue) {
  num_proposed_[0] = 1;
  Run(0);
  Choose({40, 50, kNotSampled});
  Run(1);
  EXPECT_THAT(Ints(starts_, 4), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(Ints(seq_lens_, 3), ElementsAre(0, 9, 0));
  EXPECT_THAT(Ints(sample_slot_, 3), ElementsAre(-1, 0, -1));
  EXPECT_THAT(Ints(ids_, 3), ElementsAre(50, 0, 0));
  Choose({kNotSampled, 51, kNotSampled});
  Run(2);
  EXPECT_THAT(Ints(token_ids_, 6), ElementsAre(209, 40, 0, 107, 50, 51));
  EXPECT_THAT(Ints(drafted_len_, 2), ElementsAre(9, 10));
}

TEST_F(TwoSequences, DraftModelWithManyMissingTokensOnlyCatchesUp) {
  drafted_len_[0] = 2;
  Run(0);
  EXPECT_THAT(Ints(starts_, 4), ElementsAre(0, 2, 5, 5));
  EXPECT_THAT(Ints(positions_, 5), ElementsAre(8, 9, 2, 3, 4));
  EXPECT_THAT(Ints(ids_, 5), ElementsAre(208, 209, 102, 103, 104));
  EXPECT_THAT(Ints(seq_lens_, 3), ElementsAre(10, 5, 0));
  EXPECT_THAT(Ints(sample_slot_, 3), ElementsAre(1, -1, -1));
  Choose({40, kNotSampled, kNotSampled});
  Run(1);
  EXPECT_THAT(Ints(drafted_len_, 2), ElementsAre(5, 10));
  EXPECT_THAT(Ints(seq_lens_, 3), ElementsAre(11, 0, 0));
  EXPECT_THAT(Ints(token_ids_, 6), ElementsAre(209, 40, 0, 107, 0, 0));
}

TEST_F(TwoSequences, DraftedLenBeyondTheSequenceFeedsTheLastToken) {
  drafted_len_[0] = 12;
  Run(0);
  EXPECT_THAT(Ints(contexts_, 3), ElementsAre(8, 7, 0));
  EXPECT_THAT(Ints(seq_lens_, 3), ElementsAre(10, 8, 0));
}

TEST_F(TwoSequences, UnknownTokensOfTheHistoryAreZero) {
  history_[6] = -1;
  Run(0);
  EXPECT_THAT(Ints(ids_, 4), ElementsAre(208, 209, 0, 107));
}

TEST_F(TwoSequences, RowWithoutAChoiceKeepsEarlierDrafts) {
  Run(0);
  Choose({40, 50, kNotSampled});
  Run(1);
  Choose({kNanRow, 51, kNotSampled});
  Run(2);
  EXPECT_THAT(Ints(token_ids_, 6), ElementsAre(209, 40, 0, 107, 50, 51));
}

TEST_F(TwoSequences, RowWithoutABlockIsInertAndKeepsItsTokens) {
  table_[3 + 2] = 0;  // positions 8 to 11 of slot 1
  Run(0);
  EXPECT_THAT(Ints(starts_, 4), ElementsAre(0, 2, 4, 4));
  EXPECT_THAT(Slots(5), ElementsAre(-1, -1, 6, 7, -1));
  EXPECT_THAT(Ints(ids_, 5), ElementsAre(0, 0, 106, 107, 0));
  EXPECT_THAT(Ints(seq_lens_, 3), ElementsAre(0, 8, 0));
  EXPECT_THAT(Ints(sample_slot_, 3), ElementsAre(-1, 0, -1));
  Choose({kNotSampled, 50, kNotSampled});
  Run(1);
  EXPECT_THAT(Ints(drafted_len_, 2), ElementsAre(8, 8));
  EXPECT_THAT(Ints(seq_lens_, 3), ElementsAre(0, 9, 0));
}

TEST_F(TwoSequences, DraftBeyondTheTableIsNotFed) {
  context_lens_[0] = 11;  // the last position
  drafted_len_[1] = 11;
  Run(0);
  EXPECT_THAT(Ints(seq_lens_, 3), ElementsAre(12, 8, 0));
  Choose({40, 50, kNotSampled});
  Run(1);
  EXPECT_THAT(Ints(starts_, 4), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(Ints(sample_slot_, 3), ElementsAre(-1, 0, -1));
  EXPECT_THAT(Ints(token_ids_, 6), ElementsAre(209, 40, 0, 107, 50, 0));
}

TEST_F(TwoSequences, RejectsInvalidArguments) {
  const auto refusal = [&] { return std::string(CheckDraftRows(args_).message()); };
  args_.rows.num_tokens = 9;
  EXPECT_EQ(refusal(), "");
  args_.max_drafts = 0;
  EXPECT_EQ(refusal(), "max_drafts: expected 1 to 63, got 0");
  args_.max_drafts = 2;
  args_.pass = 3;
  EXPECT_EQ(refusal(), "pass: expected 0 to 2, got 3");
  args_.pass = 1;
  args_.chosen = nullptr;
  EXPECT_EQ(refusal(), "chosen: expected an array, got none");
  args_.pass = 0;
  args_.rows.num_tokens = -1;
  EXPECT_EQ(refusal(), "rows.num_tokens: expected at least 0, got -1");
  args_.rows.num_tokens = 9;
  args_.rows.num_rows = 4;
  EXPECT_EQ(refusal(), "num_logits: expected at least 4, got 3");
  args_.rows.num_rows = 3;
  args_.rows.table.block_size = 0;
  EXPECT_EQ(refusal(), "table.block_size: expected at least 1, got 0");
  args_.rows.table.block_size = 4;
  args_.rows.num_groups = kMaxKvGroups + 1;
  EXPECT_EQ(refusal(), "rows.num_groups: expected 1 to 8, got 9");
  args_.rows.num_groups = 1;
  args_.drafted_len = nullptr;
  EXPECT_EQ(refusal(), "drafted_len: expected an array, got none");
}

// Compares the operation with the definition on a random step.
void Compare(Random& random, const DraftRowsShape& shape, const DraftHostility& hostility,
             int& num_live, int& num_faults) {
  DefinitionTwins<DraftRowsArgs> twins(
      [&](ArrayCarver& carver) { return CarveDraftRows(shape, carver); });
  const DraftRowsArgs& args = twins.args();
  DrawDraftRows(random, shape, hostility, twins.args());
  ASSERT_EQ(CheckDraftRows(args), absl::OkStatus());
  ASSERT_EQ(twins.Compare(DraftRowsOnHost, DraftRowsByDefinition), "");
  if (shape.pass == shape.num_passes()) return;
  for (int r = 0; r < shape.num_rows; ++r) {
    num_live += args.rows.arrays.seq_lens[r] > 0;
    num_faults += shape.has_faults && args.rows.arrays.row_faults[r] != 0;
  }
}

TEST(DraftRowsTest, MatchesTheDefinition) {
  int num_live = 0;
  int num_faults = 0;
  ForEachRandomShape(2000, DrawDraftRowsShape, [&](Random& random, const DraftRowsShape& shape) {
    Compare(random, shape, {.blocks = random.OneIn(3) ? 0 : 0.1}, num_live, num_faults);
  });
  EXPECT_GT(num_live, 5000);
  EXPECT_GT(num_faults, 1000);
}

TEST(DraftTreeRowsTest, MatchesTheDefinition) {
  int num_live = 0;
  int num_faults = 0;
  ForEachRandomShape(3000, DrawDraftTreeShape, [&](Random& random, const DraftRowsShape& shape) {
    Compare(random, shape, {.blocks = random.OneIn(3) ? 0.02 : 0}, num_live, num_faults);
  });
  EXPECT_GT(num_live, 3000);
}

TEST(DraftRowsTest, InvalidValuesMakeRowsInertWithoutOtherEffects) {
  int num_live = 0;
  int num_faults = 0;
  const auto draw = [](Random& random) {
    return random.OneIn(2) ? DrawDraftRowsShape(random) : DrawDraftTreeShape(random);
  };
  ForEachRandomShape(4000, draw, [&](Random& random, const DraftRowsShape& shape) {
    Compare(random, shape, {.blocks = 0.02, .parents = 0.1, .values = 0.1}, num_live, num_faults);
  });
  EXPECT_GT(num_live, 3000);
  EXPECT_GT(num_faults, 1000);
}

// Compares the visible keys of a random pass's arrays with the definition.
void CompareVisibleKeys(Random& random, DraftRowsShape shape) {
  shape.groups = {{}};
  shape.tree.clear();
  if (shape.pass == shape.num_passes()) --shape.pass;
  BuilderMemory<DraftRowsArgs> memory(
      [&](ArrayCarver& carver) { return CarveDraftRows(shape, carver); });
  DraftRowsArgs& args = memory.args();
  DrawDraftRows(random, shape, {}, args);
  AttentionParams layer = PlainLayer();
  if (random.OneIn(2)) layer.window_left = random.Pick({0, 1, random.Int(0, 20)});
  const VisiblePairs expected =
      PairsOf(DraftPassByDefinition(args, layer.window_left), args.rows.table);
  DraftRowsOnHost(args);
  EXPECT_EQ(DifferenceOf(VisibleSet(layer, DraftRowsBatch(args), shape.block_size), expected), "");
}

TEST(DraftRowsTest, VisibleKeysMatchTheDefinition) {
  ForEachRandomShape(500, DrawDraftRowsShape, CompareVisibleKeys);
}

TEST(DraftTreeRowsTest, VisibleKeysMatchTheDefinition) {
  ForEachRandomShape(500, DrawDraftTreeShape, CompareVisibleKeys);
}

}  // namespace
}  // namespace reprise
