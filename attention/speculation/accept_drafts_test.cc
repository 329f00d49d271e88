#include "reprise/attention/speculation/accept_drafts.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/random_cases.h"
#include "reprise/attention/testing/speculation/accept_cases.h"
#include "reprise/attention/testing/speculation/accept_reference.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Memory = BuilderMemory<AcceptDraftsArgs>;

constexpr int32_t kNan = kNanRow;

// Returns the message of the check.
std::string Refusal(const AcceptDraftsArgs& args) {
  return std::string(CheckAcceptDrafts(args).message());
}

// One row with kTokens - 1 drafts. Its sequence ends in token 7 at position 20.
template <int kTokens>
class AcceptOneSequence : public ::testing::Test {
 protected:
  AcceptOneSequence() {
    args_.query_start_loc = query_start_loc_;
    args_.context_lens = &context_len_;
    args_.token_ids = token_ids_;
    args_.chosen = chosen_;
    args_.first_verified = &first_verified_;
    args_.slot_of_row = &slot_;
    args_.num_rows = 1;
    args_.num_tokens = kTokens;
    args_.num_logits = kTokens;
    args_.max_drafts = 4;
    args_.slots = {.seq_len = &seq_len_,
                   .last_token = &last_token_,
                   .sample_index = &sample_index_,
                   .drafted_len = &drafted_len_,
                   .history = {history_, 30},
                   .num_slots = 1};
    args_.tokens = &token_;
    args_.num_new = &num_new_;
    args_.new_tokens = new_tokens_;
    args_.new_tokens_stride = 5;
    std::fill_n(history_, 30, -9);
  }

  // Accepts with `chosen` after each token of the row, and returns the new tokens.
  std::vector<int32_t> Accept(std::vector<int32_t> chosen) {
    std::copy_n(chosen.begin(), kTokens - 1,
                chosen_ + 1);  // logits of tokens before the last follow the rows' logits
    chosen_[0] = chosen[kTokens - 1];
    EXPECT_EQ(CheckAcceptDrafts(args_), absl::OkStatus());
    AcceptDraftsOnHost(args_);
    EXPECT_EQ(num_new_ == 0, token_ == kNotSampled || token_ == kNanRow);
    for (int i = num_new_; i < 5; ++i) EXPECT_EQ(new_tokens_[i], -9) << i;
    return std::vector<int32_t>(new_tokens_, new_tokens_ + num_new_);
  }

  int32_t chosen_[kTokens] = {};
  int32_t seq_len_ = 21;
  int32_t last_token_ = 7;
  int64_t sample_index_ = int64_t{1} << 40;
  int32_t drafted_len_ = 0;
  int32_t history_[30];
  int32_t token_ids_[kTokens] = {7, 5, 9, 2};
  int32_t query_start_loc_[2] = {0, kTokens};
  int32_t context_len_ = 20;
  int32_t slot_ = 0;
  int32_t first_verified_ = 1;
  int32_t token_ = -9;
  int32_t num_new_ = -9;
  int32_t new_tokens_[5] = {-9, -9, -9, -9, -9};
  AcceptDraftsArgs args_;
};

// A chain with drafts 5 9 2.
class AcceptOneRow : public AcceptOneSequence<4> {
 protected:
  AcceptOneRow() {
    drafted_len_ = 24;
    args_.row_faults = &row_fault_;
  }

  int32_t row_fault_ = -9;
};

TEST_F(AcceptOneRow, AcceptsDraftsUpToTheFirstMismatch) {
  EXPECT_THAT(Accept({5, 9, 4, 8}), ElementsAre(5, 9, 4));
  EXPECT_EQ(token_, 4);
  EXPECT_EQ(last_token_, 4);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 3);
  EXPECT_EQ(seq_len_, 23);
  EXPECT_EQ(drafted_len_, 23);
  EXPECT_THAT(std::vector<int32_t>(history_ + 20, history_ + 24), ElementsAre(-9, 5, 9, -9));
}

TEST_F(AcceptOneRow, AcceptsAllDraftsAndOneMoreToken) {
  EXPECT_THAT(Accept({5, 9, 2, 8}), ElementsAre(5, 9, 2, 8));
  EXPECT_EQ(last_token_, 8);
  EXPECT_EQ(seq_len_, 24);
  EXPECT_EQ(drafted_len_, 24);
  EXPECT_THAT(std::vector<int32_t>(history_ + 20, history_ + 25), ElementsAre(-9, 5, 9, 2, -9));
}

TEST_F(AcceptOneRow, StoresAcceptedDraftsByCacheSlot) {
  int32_t places[8];
  std::fill_n(places, 8, -9);
  const int64_t slots[8] = {0, 0, 0, 0, 3, 6, -1, 1};  // in group 1
  args_.slot_mapping = slots;
  args_.group_stride = 4;
  args_.num_groups = 2;
  args_.place_tokens = {.tokens = places, .num_places = 8, .group = 1};
  EXPECT_THAT(Accept({5, 9, 2, 8}), ElementsAre(5, 9, 2, 8));
  EXPECT_THAT(places, ElementsAre(-9, 2, -9, -9, -9, -9, 5, -9)) << "the last token has no keys";
}

TEST_F(AcceptOneRow, FirstDraftMismatchYieldsOneToken) {
  EXPECT_THAT(Accept({6, 9, 2, 8}), ElementsAre(6));
  EXPECT_EQ(last_token_, 6);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 1);
  EXPECT_EQ(seq_len_, 21);
  EXPECT_EQ(drafted_len_, 21);
  EXPECT_EQ(history_[21], -9);
}

TEST_F(AcceptOneRow, NanEndsTheAcceptedDrafts) {
  EXPECT_THAT(Accept({5, kNan, 2, 8}), ElementsAre(5));
  EXPECT_EQ(token_, 5);
  EXPECT_EQ(last_token_, 5);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 1);
  EXPECT_EQ(seq_len_, 21);
}

TEST_F(AcceptOneRow, NanAfterTheLastDraftKeepsTheDrafts) {
  EXPECT_THAT(Accept({5, 9, 2, kNan}), ElementsAre(5, 9, 2));
  EXPECT_EQ(last_token_, 2);
  EXPECT_EQ(seq_len_, 23);
}

TEST_F(AcceptOneRow, NanAfterTheFirstTokenYieldsNanRow) {
  EXPECT_THAT(Accept({kNan, 9, 2, 8}), ElementsAre());
  EXPECT_EQ(token_, kNanRow);
  EXPECT_EQ(last_token_, 0);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 1);
  EXPECT_EQ(seq_len_, 21);
}

TEST_F(AcceptOneRow, NegativeDraftIsNeverAccepted) {
  token_ids_[1] = kNanRow;
  EXPECT_THAT(Accept({kNan, 9, 2, 8}), ElementsAre());
  EXPECT_EQ(token_, kNanRow);
}

TEST_F(AcceptOneRow, RowWithoutDraftsHasOneNewToken) {
  first_verified_ = -1;  // a chunk of a prompt
  EXPECT_THAT(Accept({5, 9, 2, 8}), ElementsAre(8));
  EXPECT_EQ(last_token_, 8);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 1);
  EXPECT_EQ(seq_len_, 21);
  EXPECT_EQ(drafted_len_, 24);
}

TEST_F(AcceptOneRow, RowWithoutSamplingChangesNoState) {
  for (const int32_t slot : {-1, 1}) {  // num_slots is 1
    slot_ = slot;
    EXPECT_THAT(Accept({5, 9, 2, 8}), ElementsAre());
    EXPECT_EQ(row_fault_, static_cast<int32_t>(slot < 0 ? RowFault::kNone : RowFault::kTableRow));
    EXPECT_EQ(token_, kNotSampled);
    EXPECT_EQ(last_token_, 7);
    EXPECT_EQ(sample_index_, int64_t{1} << 40);
    EXPECT_EQ(seq_len_, 21);
    EXPECT_EQ(drafted_len_, 24);
  }
}

// With max_drafts below the row's number of drafts, the last new token is the choice after the last
// accepted draft.
TEST_F(AcceptOneRow, DraftsBeyondMaxDraftsAreNotAccepted) {
  args_.max_drafts = 2;
  EXPECT_THAT(Accept({5, 9, 2, 8}), ElementsAre(5, 9, 2));
  EXPECT_EQ(seq_len_, 23);
}

TEST_F(AcceptOneRow, ChosenIsIndexedByTokenWithoutFirstVerified) {
  args_.first_verified = nullptr;
  std::copy_n(std::vector<int32_t>{5, 9, 2, 8}.begin(), 4, chosen_);
  AcceptDraftsOnHost(args_);
  EXPECT_THAT(new_tokens_, ElementsAre(5, 9, 2, 8, -9));
}

TEST_F(AcceptOneRow, StateMayBeAbsent) {
  args_.slots = {.num_slots = 1};
  EXPECT_THAT(Accept({5, 9, 4, 8}), ElementsAre(5, 9, 4));
  EXPECT_EQ(seq_len_, 21);
  EXPECT_EQ(last_token_, 7);
}

TEST_F(AcceptOneRow, WritesResultsToTheSelectedOutput) {
  int32_t results[3 * 7];  // three outputs, each with a token, a count and five tokens
  std::fill_n(results, 21, -9);
  int32_t output = 0;
  int32_t place = -9;
  args_.output = &output;
  args_.output_stride = 7;
  args_.tokens = results;
  args_.num_new = results + 1;
  args_.new_tokens = results + 2;
  args_.last_place = &place;
  const auto accept = [&](std::vector<int32_t> chosen) {
    std::copy_n(chosen.begin(), 3, chosen_ + 1);
    chosen_[0] = chosen[3];
    ASSERT_EQ(CheckAcceptDrafts(args_), absl::OkStatus());
    AcceptDraftsOnHost(args_);
  };
  accept({5, 9, 4, 8});  // no output: no state changes
  EXPECT_THAT(results, Each(-9));
  EXPECT_EQ(sample_index_, int64_t{1} << 40);
  EXPECT_EQ(last_token_, 7);
  EXPECT_EQ(seq_len_, 21);
  EXPECT_EQ(place, -1);
  output = 2;
  accept({5, 9, 4, 8});
  EXPECT_THAT(results, ElementsAre(-9, -9, -9, -9, -9, -9, -9, 4, 3, 5, 9, 4, -9, -9, -9, -9, -9,
                                   -9, -9, -9, -9));
  EXPECT_EQ(last_token_, 4);
  EXPECT_EQ(place, 3);  // the third token of the row
  output = 1;
  slot_ = -1;
  accept({5, 9, 4, 8});
  EXPECT_EQ(results[0], kNotSampled);
  EXPECT_EQ(results[1], 0);
  EXPECT_EQ(place, -1);
  slot_ = 0;
  accept({5, 9, 2, 8});
  EXPECT_EQ(place, 0);  // the last token of the row
  accept({kNan, 9, 2, 8});
  EXPECT_EQ(place, -1);
  args_.output = nullptr;
  EXPECT_EQ(Refusal(args_), "output: expected an array, got none");
  args_.output_stride = -1;
  EXPECT_EQ(Refusal(args_), "output_stride: expected at least 0, got -1");
}

TEST_F(AcceptOneRow, RejectsInvalidArguments) {
  args_.num_rows = -1;
  EXPECT_EQ(Refusal(args_), "num_rows: expected at least 0, got -1");
  args_.num_rows = 1;
  args_.max_drafts = 64;
  EXPECT_EQ(Refusal(args_), "max_drafts: expected 0 to 63, got 64");
  args_.max_drafts = 4;
  args_.new_tokens = nullptr;
  EXPECT_EQ(Refusal(args_), "new_tokens: expected an array, got none");
  args_.new_tokens = new_tokens_;
  args_.place_tokens.tokens = history_;
  EXPECT_EQ(Refusal(args_), "slot_mapping: expected an array, got none");
  args_.num_rows = 0;
  EXPECT_EQ(Refusal(args_), "");
}

TEST_F(AcceptOneRow, RejectsRowsOutOfBoundsWithoutChangingState) {
  const auto refusal = [&] {
    const absl::Status status = AcceptDrafts(args_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(token_, kNotSampled);
    EXPECT_EQ(num_new_, 0);
    EXPECT_EQ(seq_len_, 21);
    EXPECT_EQ(last_token_, 7);
    return std::string(status.message());
  };
  query_start_loc_[1] = 5;
  EXPECT_EQ(refusal(),
            "rows[0]: a length or a count is negative or too large: slot 0 of 1, tokens 0 to 5 of "
            "4, context_len 20, first_verified 1 of 4");
  query_start_loc_[1] = -1;  // descending
  EXPECT_THAT(refusal(), HasSubstr("tokens 0 to -1 of 4"));
  query_start_loc_[1] = 4;
  first_verified_ = 2;
  EXPECT_THAT(refusal(), HasSubstr("first_verified 2 of 4"));
  first_verified_ = 1;
  context_len_ = -1;
  EXPECT_THAT(refusal(), HasSubstr("context_len -1"));
  context_len_ = 20;
  slot_ = 1;
  EXPECT_THAT(refusal(), HasSubstr("slot 1 of 1"));
}

using Pair = std::pair<int64_t, int64_t>;

// The tree of the header: drafts 5 9 2 9 with parents 0 0 1 2. Two KV groups hold its keys. The
// third group holds an encoder's keys.
class AcceptOneTree : public AcceptOneSequence<5> {
 protected:
  AcceptOneTree() {
    drafted_len_ = 29;
    token_ids_[4] = 9;
    args_.parents.nodes = parents_;
    args_.slot_mapping = slot_mapping_;
    args_.group_stride = 5;
    args_.num_groups = 3;
    args_.move_from = move_from_;
    args_.move_to = move_to_;
  }

  // Returns the moves of a group, without unused entries.
  std::vector<Pair> Moves(int group) const {
    std::vector<Pair> moves;
    for (int i = 4 * group; i < 4 * group + 4; ++i) {
      EXPECT_EQ(move_from_[i] < 0, move_to_[i] < 0);
      if (move_from_[i] >= 0) moves.emplace_back(move_from_[i], move_to_[i]);
    }
    return moves;
  }

  int32_t parents_[5] = {-1, 0, 0, 1, 2};
  int64_t slot_mapping_[15] = {38, 39, 20, 21, 22, 10, 11, 12, 13, 14, -1, -1, -1, -1, -1};
  int64_t move_from_[12] = {};
  int64_t move_to_[12] = {};
};

TEST_F(AcceptOneTree, AcceptsAPathAndPlansTheMovesOfItsKeys) {
  EXPECT_THAT(Accept({9, 0, 9, 0, 8}), ElementsAre(9, 9, 8));
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

TEST_F(AcceptOneTree, StoresAcceptedDraftsByDestinationSlot) {
  int32_t places[15];
  std::fill_n(places, 15, -9);
  args_.place_tokens = {.tokens = places, .num_places = 15, .group = 1};
  EXPECT_THAT(Accept({9, 0, 9, 0, 8}), ElementsAre(9, 9, 8));
  EXPECT_THAT(Moves(1), ElementsAre(Pair(12, 11), Pair(14, 12)));
  EXPECT_EQ(std::count(places, places + 15, -9), 13);
  EXPECT_EQ(places[11], 9);
  EXPECT_EQ(places[12], 9);
}

TEST_F(AcceptOneTree, NodeAtTheCorrectSlotDoesNotMove) {
  EXPECT_THAT(Accept({5, 2, 0, 8, 0}), ElementsAre(5, 2, 8));
  EXPECT_THAT(Moves(0), ElementsAre(Pair(21, 20)));
  EXPECT_EQ(seq_len_, 23);
}

TEST_F(AcceptOneTree, PathEndsIfNoChildMatchesTheChoice) {
  EXPECT_THAT(Accept({9, 0, 4, 0, 0}), ElementsAre(9, 4));
  EXPECT_THAT(Moves(0), ElementsAre(Pair(20, 39)));
  EXPECT_EQ(seq_len_, 22);
  EXPECT_EQ(last_token_, 4);
}

TEST_F(AcceptOneTree, AcceptsOnlyChildrenOfTheLastNode) {
  // Draft 2 follows 5, not 7. No draft 9 follows 5.
  EXPECT_THAT(Accept({2, 9, 9, 9, 9}), ElementsAre(2));
  EXPECT_THAT(Moves(0), ElementsAre());
  EXPECT_EQ(seq_len_, 21);
}

TEST_F(AcceptOneTree, AcceptsTheFirstOfEqualChildren) {
  token_ids_[1] = 9;
  EXPECT_THAT(Accept({9, 2, 9, 8, 8}), ElementsAre(9, 2, 8));
}

TEST_F(AcceptOneTree, NanEndsThePath) {
  EXPECT_THAT(Accept({9, 0, kNan, 0, 8}), ElementsAre(9));
  EXPECT_EQ(token_, 9);
  EXPECT_EQ(last_token_, 9);
  EXPECT_EQ(seq_len_, 21);
}

// As in a chain, the key of the last new token is not kept.
TEST_F(AcceptOneTree, LastNewTokenIsNeitherMovedNorStored) {
  EXPECT_THAT(Accept({9, 0, kNan, 0, 8}), ElementsAre(9));
  EXPECT_THAT(Moves(0), ElementsAre());
  EXPECT_THAT(history_, Each(-9));
}

TEST_F(AcceptOneTree, NanAfterTheFirstNodeYieldsNanRow) {
  EXPECT_THAT(Accept({kNan, 0, 9, 0, 8}), ElementsAre());
  EXPECT_EQ(token_, kNanRow);
  EXPECT_EQ(last_token_, 0);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 1);
}

TEST_F(AcceptOneTree, RowWithoutSamplingChangesNoState) {
  slot_ = -1;
  EXPECT_THAT(Accept({9, 0, 9, 0, 8}), ElementsAre());
  EXPECT_EQ(token_, kNotSampled);
  EXPECT_EQ(last_token_, 7);
  EXPECT_EQ(seq_len_, 21);
  EXPECT_THAT(Moves(0), ElementsAre());
}

TEST_F(AcceptOneTree, AcceptsAtMostMaxDrafts) {
  args_.max_drafts = 2;
  EXPECT_THAT(Accept({5, 2, 0, 8, 0}), ElementsAre(5, 2));  // node 3 is not considered
}

// A move is omitted if either slot is missing.
TEST_F(AcceptOneTree, OmitsMovesWithoutASlot) {
  slot_mapping_[1] = -1;  // destination of node 2
  Accept({9, 0, 9, 0, 8});
  EXPECT_THAT(Moves(0), ElementsAre(Pair(22, 20)));
  slot_mapping_[1] = 39;
  slot_mapping_[4] = -1;  // source of node 4
  Accept({9, 0, 9, 0, 8});
  EXPECT_THAT(Moves(0), ElementsAre(Pair(20, 39)));
}

TEST_F(AcceptOneTree, ChainNeedsNoMoves) {
  args_.parents = {};
  args_.move_from = args_.move_to = nullptr;
  EXPECT_THAT(Accept({5, 9, 2, 8, 0}), ElementsAre(5, 9, 2, 8));
  EXPECT_EQ(seq_len_, 24);
}

TEST_F(AcceptOneTree, NodeWithAnInvalidParentIsNotAccepted) {
  for (const int32_t no_parent : {2, 3, 5, -1, -2, INT32_MAX, INT32_MIN}) {
    parents_[2] = no_parent;
    EXPECT_THAT(Accept({9, 0, 9, 0, 8}), ElementsAre(9)) << no_parent;
  }
}

TEST_F(AcceptOneTree, AllRowsMayHaveTheSameTree) {
  args_.parents.row_stride = 0;
  EXPECT_THAT(Accept({9, 0, 9, 0, 8}), ElementsAre(9, 9, 8));
}

TEST_F(AcceptOneTree, RejectsInvalidArguments) {
  args_.num_groups = 0;
  EXPECT_THAT(Refusal(args_), HasSubstr("num_groups"));
  args_.num_groups = 3;
  args_.group_stride = 4;
  EXPECT_EQ(Refusal(args_), "group_stride: expected at least 5, got 4");
  args_.group_stride = 5;
  args_.parents.row_stride = -2;
  EXPECT_EQ(Refusal(args_), "parents.row_stride: expected at least -1, got -2");
  args_.parents.row_stride = TreeParents::kByToken;
  args_.move_to = nullptr;
  EXPECT_EQ(Refusal(args_), "move_to: expected an array, got none");
  args_.move_to = move_to_;
  args_.slot_mapping = nullptr;
  EXPECT_EQ(Refusal(args_), "slot_mapping: expected an array, got none");
}

// Two copies of a random batch: one for the operation, one for its definition.
struct Twins : DefinitionTwins<AcceptDraftsArgs> {
  Twins(const AcceptShape& shape, Random& random, double hostility)
      : DefinitionTwins([&](ArrayCarver& carver) { return CarveAcceptDrafts(shape, carver); }) {
    DrawAcceptDrafts(random, shape, hostility, args());
  }
};

// Returns the number of accepted drafts of a batch, without the last one of a row that ends in NaN.
int64_t NumAccepted(const AcceptDraftsArgs& args) {
  int64_t count = 0;
  if (!HasOutput(args)) return 0;
  for (int r = 0; r < args.num_rows; ++r) {
    count += std::max(args.num_new[OutputOffset(args) + r] - 1, 0);
  }
  return count;
}

TEST(AcceptDraftsTest, MatchesTheDefinition) {
  int64_t num_accepted = 0;
  ForEachRandomShape(3000, DrawAcceptShape, [&](Random& random, const AcceptShape& shape) {
    Twins twins(shape, random, 0);
    ASSERT_EQ(CheckAcceptDrafts(twins.args()), absl::OkStatus());
    ASSERT_EQ(twins.Compare(AcceptDraftsOnHost, AcceptByDefinition), "");
    num_accepted += NumAccepted(twins.args());
  });
  EXPECT_GT(num_accepted, 20000);
}

TEST(AcceptDraftsTest, InvalidValuesMakeRowsInertWithoutOtherEffects) {
  int num_faults = 0;
  ForEachRandomShape(3000, DrawAcceptShape, [&](Random& random, const AcceptShape& shape) {
    Twins twins(shape, random, 0.1);
    ASSERT_EQ(twins.Compare(AcceptDraftsOnHost, AcceptByDefinition), "");
    const AcceptDraftsArgs& args = twins.args();
    for (int r = 0; args.row_faults != nullptr && HasOutput(args) && r < shape.num_rows; ++r) {
      num_faults += args.row_faults[r] != 0;
      ASSERT_TRUE(args.row_faults[r] == 0 || args.num_new[OutputOffset(args) + r] == 0);
    }
  });
  EXPECT_GT(num_faults, 500);
}

TEST(AcceptDraftsTest, LinearTreeMatchesTheChain) {
  int64_t num_accepted = 0;
  const auto draw = [](Random& random) {
    AcceptShape shape = DrawAcceptShape(random);
    shape.has_trees = true;
    shape.parent_stride = 0;
    shape.place_group = 0;  // chains then have slots too
    return shape;
  };
  ForEachRandomShape(500, draw, [&](Random& random, const AcceptShape& shape) {
    Twins twins(shape, random, 0);
    AcceptDraftsArgs& line = twins.args();
    auto* parents = const_cast<int32_t*>(line.parents.nodes);
    for (int node = 0; node <= shape.max_drafts; ++node) parents[node] = node - 1;
    const int64_t num_moves = int64_t{shape.num_groups} * shape.num_rows * shape.max_drafts;
    const auto chain = [&](AcceptDraftsArgs args) {
      args.parents = {};
      AcceptDraftsOnHost(args);
      std::fill_n(args.move_from, num_moves, -1);
      std::fill_n(args.move_to, num_moves, -1);
    };
    ASSERT_EQ(twins.Compare(AcceptDraftsOnHost, chain), "");
    EXPECT_THAT(std::vector<int64_t>(line.move_from, line.move_from + num_moves), Each(-1));
    num_accepted += NumAccepted(line);
  });
  EXPECT_GT(num_accepted, 1000);
}

// Before the moves, each cache slot holds the node that was written to the slot. After the moves,
// the row's first slots hold the accepted nodes in the order of the path.
TEST(AcceptDraftsTest, MovesPutAcceptedKeysInPathOrder) {
  int num_moves = 0;
  const auto draw = [](Random& random) {
    AcceptShape shape = DrawAcceptShape(random);
    shape.has_trees = true;
    shape.num_outputs = 0;
    shape.vocab_size = 30000;  // large, so that tokens almost always identify nodes
    return shape;
  };
  ForEachRandomShape(3000, draw, [&](Random& random, const AcceptShape& shape) {
    Memory memory([&](ArrayCarver& carver) { return CarveAcceptDrafts(shape, carver); });
    AcceptDraftsArgs& args = memory.args();
    DrawAcceptDrafts(random, shape, 0, args);
    std::map<int64_t, int64_t> cache;  // slot -> token of the batch
    const int64_t* slots = args.slot_mapping;
    for (int64_t t = 0; t < args.query_start_loc[shape.num_rows]; ++t) {
      if (slots[t] >= 0) cache[slots[t]] = t;
    }
    AcceptDraftsOnHost(args);
    for (int64_t i = 0; i < int64_t{shape.num_rows} * shape.max_drafts; ++i) {
      if (args.move_from[i] < 0) continue;
      ASSERT_EQ(cache.count(args.move_from[i]), 1u);
      cache[args.move_to[i]] = cache[args.move_from[i]];
      ++num_moves;
    }
    for (int r = 0; r < shape.num_rows; ++r) {
      const int first = args.query_start_loc[r];
      bool has_all_slots = true;
      for (int t = first; t < args.query_start_loc[r + 1]; ++t) {
        has_all_slots = has_all_slots && slots[t] >= 0;
      }
      for (int i = 1; has_all_slots && i < args.num_new[r]; ++i) {
        ASSERT_EQ(args.token_ids[cache.at(slots[first + i])],
                  args.new_tokens[r * args.new_tokens_stride + i - 1])
            << "row " << r;
      }
    }
  });
  EXPECT_GT(num_moves, 5000);
}

}  // namespace
}  // namespace reprise
