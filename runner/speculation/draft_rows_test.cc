#include "reprise/runner/speculation/draft_rows.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/speculation/speculation_options.h"
#include "reprise/runner/testing/speculation_cases.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> Ints(const int32_t* data, int count) { return {data, data + count}; }

// Two slots with tables {3, 1, 4} and {2, 6, 5} of blocks of 4, whose histories are 100, 101, ...
// and 200, 201, ...; rows of slot 1 at position 9, and of slot 0 at position 7, and a padded row.
class TwoSequences : public ::testing::Test {
 protected:
  static constexpr int kRows = 3;
  static constexpr int kDrafts = 2;

  TwoSequences() {
    for (int i = 0; i < 12; ++i) {
      history_[i] = 100 + i;
      history_[12 + i] = 200 + i;
    }
    args_.slots.block_table = table_;
    args_.slots.block_table_stride = 3;
    args_.slots.num_slots = 2;
    args_.slots.max_blocks = 3;
    args_.slots.drafted_len = drafted_len_;
    args_.slots.history = {history_, 12};
    args_.arrays.token_ids = token_ids_;
    args_.arrays.query_start_loc = query_start_loc_;
    args_.arrays.context_lens = context_lens_;
    args_.arrays.table_row = table_row_;
    args_.arrays.num_proposed = num_proposed_;
    args_.arrays.max_rows = kRows;
    args_.draft.token_ids = ids_;
    args_.draft.positions = positions_;
    args_.draft.slot_mapping = slots_;
    args_.draft.query_start_loc = starts_;
    args_.draft.seq_lens = seq_lens_;
    args_.draft.context_lens = contexts_;
    args_.draft.encoder_lens = encoder_lens_;
    args_.draft.table_row = rows_;
    args_.draft.logits_indices = logits_;
    args_.draft.sample_slot = sample_slot_;
    args_.draft.sample_offset = sample_offset_;
    args_.draft.common_prefix_len = &common_prefix_len_;
    args_.draft.max_rows = kRows;
    args_.draft.max_tokens = kRows * (1 + kDrafts);
    args_.chosen = chosen_;
    args_.max_drafts = kDrafts;
    args_.num_rows = kRows;
    args_.block_size = 4;
    args_.num_blocks = 7;
  }

  void Run(int pass) {
    args_.pass = pass;
    args_.num_tokens = NumDraftTokens(pass, kRows, kDrafts);
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
  int32_t table_row_[kRows] = {1, 0, 0};
  int32_t num_proposed_[kRows] = {2, 2, 0};
  int32_t chosen_[kRows] = {-5, -5, -5};
  int32_t ids_[9], positions_[9], starts_[kRows + 1], seq_lens_[kRows], contexts_[kRows],
      encoder_lens_[kRows], rows_[kRows], logits_[kRows], sample_slot_[kRows],
      sample_offset_[kRows];
  int64_t slots_[9];
  int32_t common_prefix_len_ = -9;
  DraftRowsArgs args_;
};

// The header's tree {0, 0, 1, 1, 2} of a sequence at position 9, in blocks 2, 3, 5, 6 of 4.
TEST(DraftTreeRowsTest, ALevelIsFedAtOnceAndItsNodesSeeTheirPaths) {
  int32_t table[] = {2, 3, 5, 6};
  int32_t drafted_len = 9;
  int32_t history[16] = {};
  int32_t token_ids[6] = {77, 0, 0, 0, 0, 0};
  int32_t query_start_loc[2] = {0, 6};
  int32_t context_len = 9;
  int32_t slot = 0;
  int32_t num_proposed = 5;
  uint64_t step_mask[6] = {0b1, 0b11, 0b101, 0b1011, 0b10011, 0b100101};
  const int32_t tree[] = {0, 0, 1, 1, 2};
  const int32_t ranks[] = {0, 1, 0, 1, 0};
  int32_t chosen[4] = {};
  int32_t ids[6], positions[6], starts[2], seq_lens[1], contexts[1], encoder_lens[1], rows[1],
      logits[2], sample_slot[2], sample_offset[2], tail_len[1], common_prefix_len;
  int64_t slots[6];
  uint64_t tail_mask[6] = {};
  DraftRowsArgs args;
  args.slots.block_table = table;
  args.slots.block_table_stride = 4;
  args.slots.num_slots = 1;
  args.slots.max_blocks = 4;
  args.slots.drafted_len = &drafted_len;
  args.slots.history = {history, 16};
  args.arrays.token_ids = token_ids;
  args.arrays.query_start_loc = query_start_loc;
  args.arrays.context_lens = &context_len;
  args.arrays.table_row = &slot;
  args.arrays.num_proposed = &num_proposed;
  args.arrays.tail_mask = step_mask;
  args.arrays.max_rows = 1;
  args.draft.token_ids = ids;
  args.draft.positions = positions;
  args.draft.slot_mapping = slots;
  args.draft.query_start_loc = starts;
  args.draft.seq_lens = seq_lens;
  args.draft.context_lens = contexts;
  args.draft.encoder_lens = encoder_lens;
  args.draft.table_row = rows;
  args.draft.logits_indices = logits;
  args.draft.sample_slot = sample_slot;
  args.draft.sample_offset = sample_offset;
  args.draft.tail_len = tail_len;
  args.draft.tail_mask = tail_mask;
  args.draft.common_prefix_len = &common_prefix_len;
  args.draft.max_rows = 1;
  args.draft.max_tokens = 6;
  args.draft.max_earlier_logits = 1;
  args.chosen = chosen;
  args.max_drafts = 5;
  args.num_rows = 1;
  args.block_size = 4;
  args.num_blocks = 7;
  args.level = {.tree = tree,
                .ranks = ranks,
                .num_levels = 2,
                .first_before = 0,
                .first = 0,
                .end = 1,
                .rank_stride = 2};

  args.num_tokens = NumDraftTokens(0, 1, 5);
  ASSERT_EQ(CheckDraftRows(args), absl::OkStatus());
  DraftRowsOnHost(args);
  EXPECT_THAT(Ints(ids, 2), ElementsAre(77, 0));
  EXPECT_EQ(tail_len[0], 0) << "it is a chain";

  // The second rank has its place two elements on.
  chosen[0] = 50;
  chosen[2] = 51;
  args.pass = 1;
  args.level.first = 1;
  args.level.end = 3;
  args.num_tokens = NumDraftTokens(1, 1, 5, /*width=*/2);
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

  chosen[0] = 60;  // behind node 1
  chosen[1] = 61;  // behind node 2
  chosen[2] = 62;  // behind node 1, the second
  args.pass = 2;
  args.level.first_before = 1;
  args.level.first = 3;
  args.level.end = 6;
  ASSERT_EQ(CheckDraftRows(args), absl::OkStatus());
  DraftRowsOnHost(args);
  EXPECT_THAT(Ints(token_ids, 6), ElementsAre(77, 50, 51, 60, 62, 61));
  EXPECT_EQ(drafted_len, 11) << "a path of it has a node of the first level";

  // With fewer drafts than a level needs, it is not fed, and what is beyond them stays.
  std::fill_n(token_ids + 1, 5, 0);
  num_proposed = 2;
  DraftRowsOnHost(args);
  EXPECT_THAT(Ints(token_ids, 6), ElementsAre(77, 0, 0, 0, 0, 0));
  args.pass = 1;
  args.level = {.tree = tree,
                .ranks = ranks,
                .num_levels = 2,
                .first_before = 0,
                .first = 1,
                .end = 3,
                .rank_stride = 2};
  DraftRowsOnHost(args);
  EXPECT_EQ(seq_lens[0], 0);
  EXPECT_THAT(Ints(sample_slot, 2), ElementsAre(-1, -1));
  EXPECT_THAT(Ints(token_ids, 3), ElementsAre(77, 60, 62));

  const auto refusal = [&] { return std::string(CheckDraftRows(args).message()); };
  args.level.end = 7;
  EXPECT_EQ(refusal(), "level.end: expected 2 to 6, got 7");
  args.level.end = 4;
  EXPECT_EQ(refusal(), "num_rows x nodes of the level: expected at most 2, got 3");
  args.draft.tail_mask = nullptr;
  EXPECT_EQ(refusal(), "draft.tail_mask: expected an array, got none");
}

TEST_F(TwoSequences, AStepOfTwoDrafts) {
  Run(0);  // what the draft model has not seen
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
  EXPECT_THAT(Ints(drafted_len_, 2), ElementsAre(8, 10));  // of the first pass

  Choose({41, 51, kNotSampled});
  starts_[0] = 77;  // no rows are written
  Run(2);
  EXPECT_EQ(starts_[0], 77);
  EXPECT_THAT(Ints(token_ids_, 6), ElementsAre(209, 40, 41, 107, 50, 51));
  EXPECT_THAT(Ints(drafted_len_, 2), ElementsAre(9, 11));
}

TEST_F(TwoSequences, ARowEndsWithItsLastDraftAndTheOthersGoOn) {
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

TEST_F(TwoSequences, AModelThatIsFarBehindOnlyCatchesUp) {
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

TEST_F(TwoSequences, AModelThatIsAheadSeesTheLastTokenAgain) {
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

TEST_F(TwoSequences, ARowThatCannotChooseHasTheDraftsBefore) {
  Run(0);
  Choose({40, 50, kNotSampled});
  Run(1);
  Choose({kNanRow, 51, kNotSampled});
  Run(2);
  EXPECT_THAT(Ints(token_ids_, 6), ElementsAre(209, 40, 0, 107, 50, 51));
}

TEST_F(TwoSequences, ARowWithoutABlockIsInertAndKeepsItsPlace) {
  table_[3 + 2] = 0;  // of positions 8 on of slot 1
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

TEST_F(TwoSequences, ADraftBeyondTheTableIsNotRun) {
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

TEST_F(TwoSequences, BadInputIsRefusedWithNamesAndValues) {
  const auto refusal = [&] { return std::string(CheckDraftRows(args_).message()); };
  args_.num_tokens = 9;
  EXPECT_EQ(refusal(), "");
  args_.max_drafts = 0;
  EXPECT_EQ(refusal(), "max_drafts: expected 1 to 16, got 0");
  args_.max_drafts = 2;
  args_.pass = 3;
  EXPECT_EQ(refusal(), "pass: expected 0 to 2, got 3");
  args_.pass = 1;
  args_.chosen = nullptr;
  EXPECT_EQ(refusal(), "chosen: expected an array, got none");
  args_.pass = 0;
  args_.num_tokens = 10;
  EXPECT_EQ(refusal(), "num_tokens: expected at most 9, got 10");
  args_.num_tokens = 9;
  args_.num_rows = 4;
  EXPECT_EQ(refusal(), "num_rows: expected at most 3, got 4");
  args_.num_rows = 3;
  args_.block_size = 0;
  EXPECT_EQ(refusal(), "block_size: expected at least 1, got 0");
  args_.block_size = 4;
  args_.draft.num_position_dims = 3;
  EXPECT_EQ(refusal(), "draft.num_position_dims: expected 1, got 3");
  args_.draft.num_position_dims = 1;
  args_.slots.num_groups = kMaxKvGroups + 1;
  EXPECT_EQ(refusal(), "slots.num_groups: expected 1 to 8, got 9");
  args_.slots.num_groups = 1;
  args_.slots.drafted_len = nullptr;
  EXPECT_EQ(refusal(), "slots.drafted_len: expected an array, got none");
}

// Whether a row may write tokens [first, end) of its sequence, as far as a group's blocks go.
bool HasBlocksByDefinition(const DraftRowsArgs& args, int32_t slot, int group, int64_t first,
                           int64_t end) {
  const KvGroupSpec& spec = args.groups[group];
  if (spec.retention == KvRetention::kCross) return true;
  for (int64_t position = first; position < end; ++position) {
    const int64_t column = position / args.block_size;
    const int32_t block = args.slots.table_row(group, slot)[column];
    if (block >= 1 && block < args.num_blocks) continue;
    if (block != 0) return false;
    // The newest token that the row writes to that column, as its last query sees it.
    const int64_t newest = std::min((column + 1) * args.block_size, end) - 1;
    const int64_t query = end - 1;
    const bool is_seen =
        spec.retention == KvRetention::kFull ||
        (spec.retention == KvRetention::kSlidingWindow ? newest > query - spec.span
                                                       : newest / spec.span == query / spec.span);
    if (is_seen) return false;
  }
  return true;
}

// What the header says, row by row, into memory like the operation's own.
void DraftByDefinition(const DraftRowsArgs& args) {
  const StepArrays& draft = args.draft;
  const int32_t limit = args.slots.max_blocks * args.block_size;
  int token = 0;
  for (int r = 0; r < args.num_rows; ++r) {
    const int32_t slot = args.arrays.table_row[r];
    const int32_t np = args.arrays.num_proposed[r];
    const int32_t last = args.arrays.context_lens[r];
    int32_t* ids = args.arrays.token_ids + args.arrays.query_start_loc[r];
    if (args.pass > 0 && np > 0) {
      if (draft.seq_lens[r] > 0) args.slots.drafted_len[slot] = draft.seq_lens[r];
      if (args.chosen[r] >= 0 && args.pass <= np) {
        ids[args.pass] = args.chosen[r];
        if (args.arrays.draft_logits != nullptr) {
          args.arrays.draft_logits[args.arrays.query_start_loc[r] + args.pass] =
              (args.pass - 1) * args.logits_stride + r;
        }
      }
    }
    if (args.pass == args.max_drafts) continue;

    // Tokens of the row, from position `first` on.
    std::vector<int32_t> tokens;
    int32_t first = 0;
    if (np > 0 && args.pass == 0) {
      first = std::min(args.slots.drafted_len[slot], last);
      for (int32_t p = first; p <= last && p - first <= args.max_drafts; ++p) {
        tokens.push_back(p == last ? ids[0] : std::max(args.slots.history.row(slot)[p], 0));
      }
    } else if (np > args.pass && args.chosen[r] >= 0 && last + args.pass < limit) {
      first = last + args.pass;
      tokens = {args.chosen[r]};
    }
    const int32_t end = first + static_cast<int32_t>(tokens.size());
    bool is_live = !tokens.empty();
    for (int group = 0; group < args.slots.num_groups; ++group) {
      is_live = is_live && HasBlocksByDefinition(args, slot, group, first, end);
    }
    draft.query_start_loc[r] = token;
    draft.seq_lens[r] = is_live ? end : 0;
    draft.context_lens[r] = is_live ? first : 0;
    draft.encoder_lens[r] = 0;
    draft.table_row[r] = is_live ? slot : 0;
    draft.logits_indices[r] = is_live ? token + (end - first) - 1 : 0;
    draft.sample_slot[r] = is_live && end > last ? slot : -1;
    draft.sample_offset[r] = is_live ? args.pass : 0;
    for (int32_t p = first; p < end; ++p, ++token) {
      draft.token_ids[token] = is_live ? tokens[p - first] : 0;
      draft.positions[token] = is_live ? p : 0;
      for (int group = 0; group < args.slots.num_groups; ++group) {
        const bool is_cross = args.groups[group].retention == KvRetention::kCross;
        const int32_t block =
            is_live && !is_cross ? args.slots.table_row(group, slot)[p / args.block_size] : 0;
        draft.group_slots(group)[token] =
            block == 0 ? -1 : int64_t{block} * args.block_size + p % args.block_size;
      }
    }
  }
  if (args.pass == args.max_drafts) return;
  draft.query_start_loc[args.num_rows] = token;
  *draft.common_prefix_len = 0;
  for (; token < args.num_tokens; ++token) {
    draft.token_ids[token] = 0;
    draft.positions[token] = 0;
    for (int group = 0; group < args.slots.num_groups; ++group)
      draft.group_slots(group)[token] = -1;
  }
}

TEST(DraftRowsTest, FollowsTheDefinition) {
  std::mt19937 random(3);
  int num_live = 0;
  int num_inert = 0;
  for (int i = 0; i < 1500; ++i) {
    SpeculationShape shape = DrawSpeculationShape(random);
    if (i % 2 == 0) shape.pass = 0;
    const auto carve = [&](ArrayCarver& carver) { return CarveDraftRows(shape, carver); };
    BuilderMemory<DraftRowsArgs> memory(carve);
    BuilderMemory<DraftRowsArgs> expected(carve);
    DrawDraftRows(random, shape, i % 3 == 0 ? 0 : 0.1, memory.args());
    std::copy_n(memory.base(), memory.num_bytes(), expected.base());
    ASSERT_EQ(CheckDraftRows(memory.args()), absl::OkStatus());
    const AllocationCounter allocations;
    DraftRowsOnHost(memory.args());
    ASSERT_EQ(allocations.count(), 0);
    DraftByDefinition(expected.args());
    ASSERT_EQ(memory.FirstDifference(expected.base()), "") << "case " << i << ": " << shape;
    for (int r = 0; shape.pass < shape.max_drafts && r < shape.num_rows; ++r) {
      ++(memory.args().draft.seq_lens[r] > 0 ? num_live : num_inert);
    }
  }
  EXPECT_GT(num_live, 5000);
  EXPECT_GT(num_inert, 5000);
}

}  // namespace
}  // namespace reprise
