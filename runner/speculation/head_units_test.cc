// The operations for draft heads, on the host: PlaceDrafts writes drafts into the step's tokens,
// KeepStates stores hidden states per slot.

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/runner/speculation/keep_states.h"
#include "reprise/runner/speculation/place_drafts.h"
#include "reprise/runner/testing/rejection_cases.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PlaceDraftsTest, WritesTheRequestedNumberOfDraftsPerRow) {
  int32_t token_ids[] = {7, 0, 0, 0, 8, 5, 5, 9, 0, 0, 0};
  int32_t draft_logits[] = {-9, -1, -1, -1, -9, -1, -1, -9, -1, -1, -1};
  int32_t query_start_loc[] = {0, 4, 7, 11};
  int32_t num_proposed[] = {2, 0, 3};
  const int32_t chosen[] = {1, 2, 3, -9, 11, 12, kNanRow, -9, 21, 22, 23, -9};
  PlaceDraftsArgs args;
  args.arrays.token_ids = token_ids;
  args.arrays.draft_logits = draft_logits;
  args.arrays.query_start_loc = query_start_loc;
  args.arrays.num_proposed = num_proposed;
  args.arrays.max_rows = 3;
  args.chosen = chosen;
  args.chosen_stride = 4;
  args.num_rows = 3;
  args.max_drafts = 3;
  ASSERT_EQ(CheckPlaceDrafts(args), absl::OkStatus());
  PlaceDraftsOnHost(args);
  // The third row's second draft was not sampled, so its third draft is not written either.
  EXPECT_THAT(token_ids, ElementsAre(7, 1, 11, 0, 8, 5, 5, 9, 3, 0, 0));
  EXPECT_THAT(draft_logits, ElementsAre(-9, 0, 4, -1, -9, -1, -1, -9, 2, -1, -1));
  args.arrays.draft_logits = nullptr;
  args.max_drafts = 1;
  num_proposed[0] = 9;
  token_ids[1] = 0;
  token_ids[2] = 0;
  PlaceDraftsOnHost(args);
  EXPECT_THAT(token_ids, ElementsAre(7, 1, 0, 0, 8, 5, 5, 9, 3, 0, 0));
}

// Two drafts in the first level, and two children of each: all nodes of a level get the same
// children.
TEST(PlaceDraftsTest, EachPassOfATreeWritesOneLevel) {
  int32_t token_ids[] = {7, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0};
  int32_t query_start_loc[] = {0, 7, 11};
  int32_t num_proposed[] = {6, 3};
  const int32_t chosen[] = {10, 20, 11, 21, 12, 22, 13, kNanRow};  // by child index, for two rows
  const int32_t ranks[] = {0, 1, 0, 1, 0, 1};
  PlaceDraftsArgs args;
  args.arrays.token_ids = token_ids;
  args.arrays.query_start_loc = query_start_loc;
  args.arrays.num_proposed = num_proposed;
  args.arrays.max_rows = 2;
  args.chosen = chosen;
  args.chosen_stride = 2;
  args.num_rows = 2;
  args.max_drafts = 6;
  args.ranks = ranks;
  args.num_levels = 2;
  args.end_of_level[0] = 2;
  args.end_of_level[1] = 6;
  args.first_of_level[1] = 2;
  ASSERT_EQ(CheckPlaceDrafts(args), absl::OkStatus());
  PlaceDraftsOnHost(args);
  EXPECT_THAT(token_ids, ElementsAre(7, 10, 11, 12, 13, 12, 13, 8, 20, 21, 22));
  args.num_levels = 0;
  EXPECT_THAT(std::string(CheckPlaceDrafts(args).message()), HasSubstr("num_levels"));
}

TEST(PlaceDraftsTest, RejectsInvalidArguments) {
  std::mt19937 random(1);
  const RejectionShape shape;
  BuilderMemory<PlaceDraftsArgs> memory(
      [&](ArrayCarver& carver) { return CarvePlaceDrafts(shape, carver); });
  const auto message = [](const PlaceDraftsArgs& args) {
    return std::string(CheckPlaceDrafts(args).message());
  };
  PlaceDraftsArgs args = memory.args();
  EXPECT_EQ(message(args), "");
  args.max_drafts = 17;
  EXPECT_THAT(message(args), HasSubstr("max_drafts: expected 0 to 16, got 17"));
  args = memory.args();
  args.chosen_stride = 3;
  EXPECT_THAT(message(args), HasSubstr("chosen_stride: expected at least 4, got 3"));
  args = memory.args();
  args.num_rows = 5;
  EXPECT_THAT(message(args), HasSubstr("num_rows"));
  args = memory.args();
  args.chosen = nullptr;
  EXPECT_THAT(message(args), HasSubstr("chosen"));
}

// Two slots with three states each.
struct TwoSlotsOfThree {
  std::vector<uint16_t> hidden = {10, 20, 30, 40, 50, 60, 70};  // one element per token
  std::vector<int32_t> positions = {4, 5, 6, 7, 8, 2, 0};
  std::vector<int32_t> table_row = {1, 0, 0};  // the last row has no tokens
  std::vector<int32_t> query_start_loc = {0, 5, 6, 6};
  std::vector<uint16_t> states = std::vector<uint16_t>(6, 1);
  std::vector<int32_t> state_positions = std::vector<int32_t>(6, -2);

  KeepStatesArgs args() {
    return {.hidden = reinterpret_cast<const std::byte*>(hidden.data()),
            .num_hidden = 7,
            .row_bytes = 2,
            .positions = positions.data(),
            .table_row = table_row.data(),
            .query_start_loc = query_start_loc.data(),
            .num_tokens = 7,
            .num_rows = 3,
            .states = reinterpret_cast<std::byte*>(states.data()),
            .state_positions = state_positions.data(),
            .num_slots = 2,
            .num_kept = 3};
  }
};

TEST(KeepStatesTest, KeepsTheStatesOfARowsLastTokens) {
  TwoSlotsOfThree slots;
  ASSERT_EQ(CheckKeepStates(slots.args()), absl::OkStatus());
  KeepStatesOnHost(slots.args());
  EXPECT_THAT(slots.state_positions, ElementsAre(-2, -2, 2, 6, 7, 8));
  EXPECT_THAT(slots.states, ElementsAre(1, 1, 60, 30, 40, 50));
  // The state of the first row's next token replaces the row's oldest state.
  slots.positions = {9};
  slots.query_start_loc = {0, 1, 1, 1};
  slots.hidden = {80};
  KeepStatesOnHost(slots.args());
  EXPECT_THAT(slots.state_positions, ElementsAre(-2, -2, 2, 9, 7, 8));
  EXPECT_THAT(slots.states, ElementsAre(1, 1, 60, 80, 40, 50));
  slots.table_row = {2, -1, 0};
  KeepStatesOnHost(slots.args());
  EXPECT_THAT(slots.states, ElementsAre(1, 1, 60, 80, 40, 50)) << "slot indices out of range";
}

TEST(KeepStatesTest, WithLastTokenEachRowHasOneState) {
  TwoSlotsOfThree slots;
  KeepStatesArgs args = slots.args();
  const int32_t last_token[] = {4, 5, 6};
  const int32_t sample_slot[] = {1, 0, -1};
  args.last_token = last_token;
  args.sample_slot = sample_slot;
  args.num_hidden = 3;
  ASSERT_EQ(CheckKeepStates(args), absl::OkStatus());
  KeepStatesOnHost(args);
  EXPECT_THAT(slots.state_positions, ElementsAre(-2, -2, 2, -2, -2, 8));
  EXPECT_THAT(slots.states, ElementsAre(1, 1, 20, 1, 1, 10));
}

// Heads without layers keep one state: the state that the newest token was sampled from.
TEST(KeepStatesTest, PlaceSelectsTheRowOfHidden) {
  TwoSlotsOfThree slots;
  const int32_t last_token[] = {4, 5, 6};
  const int32_t sample_slot[] = {1, 0, -1};
  int32_t place[] = {6, 2, 3};
  slots.states = {1, 2};
  slots.state_positions = {-2, -2};
  KeepStatesArgs args = slots.args();
  args.last_token = last_token;
  args.sample_slot = sample_slot;
  args.place = place;
  args.num_kept = 1;
  ASSERT_EQ(CheckKeepStates(args), absl::OkStatus());
  KeepStatesOnHost(args);
  EXPECT_THAT(slots.states, ElementsAre(30, 70));
  EXPECT_THAT(slots.state_positions, ElementsAre(2, 8));
  place[0] = 7;  // out of range
  place[1] = -1;
  slots.hidden.assign(7, 90);
  KeepStatesOnHost(args);
  EXPECT_THAT(slots.states, ElementsAre(30, 70));
  args.place = nullptr;  // row r reads row r of `hidden`
  KeepStatesOnHost(args);
  EXPECT_THAT(slots.states, ElementsAre(90, 90));
}

TEST(KeepStatesTest, RejectsInvalidArguments) {
  TwoSlotsOfThree slots;
  const auto message = [](const KeepStatesArgs& args) {
    return std::string(CheckKeepStates(args).message());
  };
  KeepStatesArgs args = slots.args();
  args.num_kept = 0;
  EXPECT_THAT(message(args), HasSubstr("num_kept: expected at least 1, got 0"));
  args = slots.args();
  args.row_bytes = 3;
  EXPECT_THAT(message(args), HasSubstr("row_bytes must be a multiple of 2: got 3"));
  args = slots.args();
  args.query_start_loc = nullptr;
  EXPECT_THAT(message(args), HasSubstr("query_start_loc"));
  args.last_token = slots.table_row.data();
  EXPECT_THAT(message(args), HasSubstr("sample_slot"));
}

}  // namespace
}  // namespace reprise
