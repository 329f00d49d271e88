#include "reprise/runner/speculation/verify_trees.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/runner/speculation/speculation_options.h"
#include "reprise/runner/testing/speculation_cases.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kNan = kNanRow;

// The row of the header's picture: a sequence that ends in 7 at position 20, drafts 5 9 2 9 with
// parents 0 0 1 2, in two groups; an encoder's third one.
class OneTree : public ::testing::Test {
 protected:
  OneTree() {
    VerifyDraftsArgs& drafts = args_.drafts;
    drafts.chosen = chosen_;
    drafts.slots.seq_len = &seq_len_;
    drafts.slots.last_token = &last_token_;
    drafts.slots.sample_index = &sample_index_;
    drafts.slots.drafted_len = &drafted_len_;
    drafts.slots.history = {history_, 30};
    drafts.slots.num_slots = 1;
    drafts.arrays.token_ids = token_ids_;
    drafts.arrays.parents = parents_;
    drafts.arrays.slot_mapping = slot_mapping_;
    drafts.arrays.query_start_loc = query_start_loc_;
    drafts.arrays.context_lens = &context_len_;
    drafts.arrays.sample_slot = &sample_slot_;
    drafts.arrays.first_verified = &first_verified_;
    drafts.arrays.max_rows = 1;
    drafts.arrays.max_tokens = 5;
    drafts.num_rows = 1;
    drafts.max_drafts = 4;
    drafts.tokens = &token_;
    drafts.num_new = &num_new_;
    drafts.new_tokens = new_tokens_;
    args_.num_groups = 3;
    args_.move_from = move_from_;
    args_.move_to = move_to_;
    args_.max_moves = 4;
    std::fill_n(history_, 30, -9);
  }

  // `chosen` after each of the five nodes; the row's new tokens.
  std::vector<int32_t> Verify(std::vector<int32_t> chosen) {
    std::copy_n(chosen.begin(), 4, chosen_ + 1);  // earlier logits follow those of rows
    chosen_[0] = chosen[4];
    EXPECT_EQ(CheckVerifyTrees(args_), absl::OkStatus());
    VerifyTreesOnHost(args_);
    return std::vector<int32_t>(new_tokens_, new_tokens_ + num_new_);
  }
  // Of a group, those that are there.
  std::vector<std::pair<int64_t, int64_t>> Moves(int group) const {
    std::vector<std::pair<int64_t, int64_t>> moves;
    for (int i = 4 * group; i < 4 * group + 4; ++i) {
      EXPECT_EQ(move_from_[i] < 0, move_to_[i] < 0);
      if (move_from_[i] >= 0) moves.emplace_back(move_from_[i], move_to_[i]);
    }
    return moves;
  }

  int32_t chosen_[5] = {};
  int32_t seq_len_ = 21;
  int32_t last_token_ = 7;
  int64_t sample_index_ = int64_t{1} << 40;
  int32_t drafted_len_ = 29;
  int32_t history_[30];
  int32_t token_ids_[5] = {7, 5, 9, 2, 9};
  int32_t parents_[5] = {-1, 0, 0, 1, 2};
  int64_t slot_mapping_[15] = {38, 39, 20, 21, 22, 10, 11, 12, 13, 14, -1, -1, -1, -1, -1};
  int32_t query_start_loc_[2] = {0, 5};
  int32_t context_len_ = 20;
  int32_t sample_slot_ = 0;
  int32_t first_verified_ = 1;
  int32_t token_ = -9;
  int32_t num_new_ = -9;
  int32_t new_tokens_[5] = {-9, -9, -9, -9, -9};
  int64_t move_from_[12] = {};
  int64_t move_to_[12] = {};
  VerifyTreesArgs args_;
};

using Pair = std::pair<int64_t, int64_t>;

TEST_F(OneTree, APathIsAcceptedAndItsKeysMoveToItsOrder) {
  EXPECT_THAT(Verify({9, 0, 9, 0, 8}), ElementsAre(9, 9, 8));
  EXPECT_EQ(token_, 8);
  EXPECT_EQ(last_token_, 8);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 3);
  EXPECT_EQ(seq_len_, 23);
  EXPECT_EQ(drafted_len_, 23);
  EXPECT_THAT(std::vector<int32_t>(history_ + 20, history_ + 24), ElementsAre(-9, 9, 9, -9));
  EXPECT_THAT(Moves(0), ElementsAre(Pair(20, 39), Pair(22, 20)));
  EXPECT_THAT(Moves(1), ElementsAre(Pair(12, 11), Pair(14, 12)));
  EXPECT_THAT(Moves(2), ElementsAre());
}

TEST_F(OneTree, TokensAreKeptWhereKeysMoveTo) {
  int32_t places[15];
  std::fill_n(places, 15, -9);
  args_.drafts.place_tokens = {.tokens = places, .num_places = 15, .group = 1};
  EXPECT_THAT(Verify({9, 0, 9, 0, 8}), ElementsAre(9, 9, 8));
  EXPECT_THAT(Moves(1), ElementsAre(Pair(12, 11), Pair(14, 12)));
  EXPECT_EQ(std::count(places, places + 15, -9), 13);
  EXPECT_EQ(places[11], 9);
  EXPECT_EQ(places[12], 9);
}

TEST_F(OneTree, ANodeThatIsWhereThePathWantsItStays) {
  EXPECT_THAT(Verify({5, 2, 0, 8, 0}), ElementsAre(5, 2, 8));
  EXPECT_THAT(Moves(0), ElementsAre(Pair(21, 20)));
  EXPECT_EQ(seq_len_, 23);
}

TEST_F(OneTree, ThePathEndsWhereTheSequenceGoesOnOtherwise) {
  EXPECT_THAT(Verify({9, 0, 4, 0, 0}), ElementsAre(9, 4));
  EXPECT_THAT(Moves(0), ElementsAre(Pair(20, 39)));
  EXPECT_EQ(seq_len_, 22);
  EXPECT_EQ(last_token_, 4);
}

TEST_F(OneTree, OnlyNodesThatFollowAreAccepted) {
  // 2 is a draft, but follows 5; 9 does not follow 5.
  EXPECT_THAT(Verify({2, 9, 9, 9, 9}), ElementsAre(2));
  EXPECT_THAT(Moves(0), ElementsAre());
  EXPECT_EQ(seq_len_, 21);
}

TEST_F(OneTree, OfEqualNodesTheFirstIsAccepted) {
  token_ids_[1] = 9;
  EXPECT_THAT(Verify({9, 2, 9, 8, 8}), ElementsAre(9, 2, 8));
}

TEST_F(OneTree, ANanEndsWhatIsBeforeIt) {
  EXPECT_THAT(Verify({9, 0, kNan, 0, 8}), ElementsAre(9));
  EXPECT_EQ(token_, 9);
  EXPECT_EQ(last_token_, 9);
  EXPECT_EQ(seq_len_, 21);
}

TEST_F(OneTree, ANanAtTheFirstNodeIsTheRows) {
  EXPECT_THAT(Verify({kNan, 0, 9, 0, 8}), ElementsAre());
  EXPECT_EQ(token_, kNanRow);
  EXPECT_EQ(last_token_, 0);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 1);
}

TEST_F(OneTree, ARowThatDoesNotSampleChangesNothing) {
  sample_slot_ = -1;
  EXPECT_THAT(Verify({9, 0, 9, 0, 8}), ElementsAre());
  EXPECT_EQ(token_, kNotSampled);
  EXPECT_EQ(last_token_, 7);
  EXPECT_EQ(seq_len_, 21);
  EXPECT_THAT(Moves(0), ElementsAre());
}

TEST_F(OneTree, NoMoreDraftsAreAcceptedThanCanMove) {
  args_.max_moves = 2;
  EXPECT_THAT(Verify({5, 2, 0, 8, 0}), ElementsAre(5, 2));  // node 3 is not looked at
}

TEST_F(OneTree, BadInputIsRefusedWithNamesAndValues) {
  const auto refusal = [&] { return std::string(CheckVerifyTrees(args_).message()); };
  args_.drafts.num_rows = 2;
  EXPECT_EQ(refusal(), "num_rows: expected at most 1, got 2");
  args_.drafts.num_rows = 1;
  args_.drafts.max_drafts = kMaxTreeDrafts + 1;
  EXPECT_EQ(refusal(), "drafts.max_drafts: expected 0 to 63, got 64");
  args_.drafts.max_drafts = 4;
  args_.max_moves = 5;
  EXPECT_EQ(refusal(), "max_moves: expected 0 to 4, got 5");
  args_.max_moves = 4;
  args_.num_groups = 0;
  EXPECT_THAT(refusal(), testing::HasSubstr("num_groups"));
  args_.num_groups = 1;
  args_.move_to = nullptr;
  EXPECT_EQ(refusal(), "move_to: expected an array, got none");
  args_.move_to = move_to_;
  args_.drafts.arrays.parents = nullptr;
  EXPECT_EQ(refusal(), "arrays.parents: expected an array, got none");
}

// What the header says, over the tree's paths. All other memory must stay as it is.
void ByDefinition(const VerifyTreesArgs& args) {
  const VerifyDraftsArgs& drafts = args.drafts;
  const StepArrays& arrays = drafts.arrays;
  const int64_t num_moves = int64_t{args.num_groups} * drafts.num_rows * args.max_moves;
  std::fill_n(args.move_from, num_moves, -1);
  std::fill_n(args.move_to, num_moves, -1);
  for (int r = 0; r < drafts.num_rows; ++r) {
    const int32_t slot = arrays.sample_slot[r];
    drafts.num_new[r] = 0;
    drafts.tokens[r] = kNotSampled;
    if (slot < 0) continue;
    const int first = arrays.query_start_loc[r];
    const int num_nodes = arrays.first_verified[r] < 0 ? 1 : arrays.query_start_loc[r + 1] - first;
    std::vector<int> path = {0};
    std::vector<int32_t> text;
    while (true) {
      const int node = path.back();
      const int32_t token =
          drafts.chosen[node == num_nodes - 1 ? r : arrays.first_verified[r] + node];
      if (token < 0) break;
      text.push_back(token);
      std::vector<int> next;
      for (int i = 1; i < num_nodes; ++i) {
        if (arrays.parents[first + i] == node && arrays.token_ids[first + i] == token) {
          next.push_back(i);
        }
      }
      if (next.empty()) break;
      path.push_back(next[0]);
    }
    const int n = static_cast<int>(text.size());
    const int num_accepted = std::max(n, 1) - 1;
    for (int group = 0; group < args.num_groups; ++group) {
      // A draft behind which nothing can be chosen moves, too, though its keys do not count.
      for (int i = 1; i < static_cast<int>(path.size()); ++i) {
        const int64_t from = arrays.group_slots(group)[first + path[i]];
        const int64_t to = arrays.group_slots(group)[first + i];
        if (path[i] == i || from < 0 || to < 0) continue;
        const int64_t move = (int64_t{group} * drafts.num_rows + r) * args.max_moves + i - 1;
        args.move_from[move] = from;
        args.move_to[move] = to;
      }
    }
    drafts.num_new[r] = n;
    drafts.tokens[r] = n == 0 ? kNanRow : text.back();
    std::copy(text.begin(), text.end(), drafts.new_tokens + r * (drafts.max_drafts + 1));
    drafts.slots.last_token[slot] = n == 0 ? 0 : text.back();
    drafts.slots.sample_index[slot] += std::max(n, 1);
    drafts.slots.seq_len[slot] += num_accepted;
    const int32_t next = arrays.context_lens[r] + 1;
    // A draft that is accepted has its token in the history, whether another follows or not.
    for (int i = 0; drafts.slots.history.tokens != nullptr && i + 1 < static_cast<int>(path.size());
         ++i) {
      drafts.slots.history.row(slot)[next + i] = text[i];
    }
    const PlaceTokens& places = drafts.place_tokens;
    for (int i = 0; places.tokens != nullptr && i + 1 < static_cast<int>(path.size()); ++i) {
      const int64_t place = arrays.group_slots(places.group)[first + 1 + i];
      if (place >= 0) places.tokens[place] = text[i];
    }
    if (drafts.slots.drafted_len != nullptr && num_nodes > 1) {
      drafts.slots.drafted_len[slot] = std::min(drafts.slots.drafted_len[slot], next - 1 + n);
    }
  }
}

TEST(VerifyTreesTest, FollowsTheDefinition) {
  std::mt19937 random(1);
  int64_t num_moves = 0;
  for (int i = 0; i < 400; ++i) {
    const SpeculationShape shape = DrawTreeShape(random);
    const auto carve = [&](ArrayCarver& carver) { return CarveVerifyTrees(shape, carver); };
    BuilderMemory<VerifyTreesArgs> memory(carve);
    BuilderMemory<VerifyTreesArgs> expected(carve);
    DrawVerifyTrees(random, shape, memory.args());
    std::copy_n(memory.base(), memory.num_bytes(), expected.base());
    ASSERT_EQ(CheckVerifyTrees(memory.args()), absl::OkStatus());
    const AllocationCounter allocations;
    VerifyTreesOnHost(memory.args());
    ASSERT_EQ(allocations.count(), 0);
    ByDefinition(expected.args());
    ASSERT_EQ(memory.FirstDifference(expected.base()), "") << "case " << i << ": " << shape;
    const VerifyTreesArgs& args = memory.args();
    const int64_t size = int64_t{args.num_groups} * shape.num_rows * args.max_moves;
    num_moves += std::count_if(args.move_from, args.move_from + size,
                               [](int64_t slot) { return slot >= 0; });
  }
  EXPECT_GT(num_moves, 1000);
}

}  // namespace
}  // namespace reprise
