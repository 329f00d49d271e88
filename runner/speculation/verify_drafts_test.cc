#include "reprise/runner/speculation/verify_drafts.h"

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

// One row of a sequence that ends in 7 at position 20, with three drafts: 5 9 2.
class OneRow : public ::testing::Test {
 protected:
  OneRow() {
    args_.chosen = chosen_;
    args_.slots.seq_len = &seq_len_;
    args_.slots.last_token = &last_token_;
    args_.slots.sample_index = &sample_index_;
    args_.slots.drafted_len = &drafted_len_;
    args_.slots.history = {history_, 30};
    args_.slots.num_slots = 1;
    args_.arrays.token_ids = token_ids_;
    args_.arrays.query_start_loc = query_start_loc_;
    args_.arrays.context_lens = &context_len_;
    args_.arrays.sample_slot = &sample_slot_;
    args_.arrays.first_verified = &first_verified_;
    args_.arrays.max_rows = 1;
    args_.num_rows = 1;
    args_.max_drafts = 4;
    args_.tokens = &token_;
    args_.num_new = &num_new_;
    args_.new_tokens = new_tokens_;
    std::fill_n(history_, 30, -9);
  }

  // `chosen` at the four places of the row; its new tokens.
  std::vector<int32_t> Verify(std::vector<int32_t> chosen) {
    std::copy_n(chosen.begin(), 3, chosen_ + 1);  // earlier logits follow those of rows
    chosen_[0] = chosen[3];
    EXPECT_EQ(CheckVerifyDrafts(args_), absl::OkStatus());
    VerifyDraftsOnHost(args_);
    EXPECT_EQ(num_new_ == 0, token_ == kNotSampled || token_ == kNanRow);
    for (int i = num_new_; i < 5; ++i) EXPECT_EQ(new_tokens_[i], -9) << i;
    return std::vector<int32_t>(new_tokens_, new_tokens_ + num_new_);
  }

  int32_t chosen_[4] = {};
  int32_t seq_len_ = 21;
  int32_t last_token_ = 7;
  int64_t sample_index_ = int64_t{1} << 40;
  int32_t drafted_len_ = 24;
  int32_t history_[30];
  int32_t token_ids_[4] = {7, 5, 9, 2};
  int32_t query_start_loc_[2] = {0, 4};
  int32_t context_len_ = 20;
  int32_t sample_slot_ = 0;
  int32_t first_verified_ = 1;
  int32_t token_ = -9;
  int32_t num_new_ = -9;
  int32_t new_tokens_[5] = {-9, -9, -9, -9, -9};
  VerifyDraftsArgs args_;
};

TEST_F(OneRow, DraftsAreAcceptedUpToTheFirstThatDiffers) {
  EXPECT_THAT(Verify({5, 9, 4, 8}), ElementsAre(5, 9, 4));
  EXPECT_EQ(token_, 4);
  EXPECT_EQ(last_token_, 4);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 3);
  EXPECT_EQ(seq_len_, 23);
  EXPECT_EQ(drafted_len_, 23);
  EXPECT_THAT(std::vector<int32_t>(history_ + 20, history_ + 24), ElementsAre(-9, 5, 9, -9));
}

TEST_F(OneRow, AllDraftsAndOneMore) {
  EXPECT_THAT(Verify({5, 9, 2, 8}), ElementsAre(5, 9, 2, 8));
  EXPECT_EQ(last_token_, 8);
  EXPECT_EQ(seq_len_, 24);
  EXPECT_EQ(drafted_len_, 24);
  EXPECT_THAT(std::vector<int32_t>(history_ + 20, history_ + 25), ElementsAre(-9, 5, 9, 2, -9));
}

TEST_F(OneRow, AcceptedDraftsAreKeptWhereTheirKeysAre) {
  int32_t places[8];
  std::fill_n(places, 8, -9);
  int64_t slots[8] = {0, 0, 0, 0, 3, 6, -1, 1};  // in group 1
  args_.arrays.slot_mapping = slots;
  args_.arrays.max_tokens = 4;
  args_.place_tokens = {.tokens = places, .num_places = 8, .group = 1};
  EXPECT_THAT(Verify({5, 9, 2, 8}), ElementsAre(5, 9, 2, 8));
  EXPECT_THAT(places, ElementsAre(-9, 2, -9, -9, -9, -9, 5, -9)) << "the last has no keys";
}

TEST_F(OneRow, OneTokenIfTheFirstDraftIsWrongWhateverTheOthersAre) {
  EXPECT_THAT(Verify({6, 9, 2, 8}), ElementsAre(6));
  EXPECT_EQ(last_token_, 6);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 1);
  EXPECT_EQ(seq_len_, 21);
  EXPECT_EQ(drafted_len_, 21);
  EXPECT_EQ(history_[21], -9);
}

TEST_F(OneRow, ATokenThatCannotBeChosenEndsThoseBeforeIt) {
  EXPECT_THAT(Verify({5, kNan, 2, 8}), ElementsAre(5));
  EXPECT_EQ(token_, 5);
  EXPECT_EQ(last_token_, 5);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 1);
  EXPECT_EQ(seq_len_, 21);
}

TEST_F(OneRow, ANanBehindTheLastDraftKeepsTheDrafts) {
  EXPECT_THAT(Verify({5, 9, 2, kNan}), ElementsAre(5, 9, 2));
  EXPECT_EQ(last_token_, 2);
  EXPECT_EQ(seq_len_, 23);
}

TEST_F(OneRow, ANanAtTheFirstPlaceIsTheRows) {
  EXPECT_THAT(Verify({kNan, 9, 2, 8}), ElementsAre());
  EXPECT_EQ(token_, kNanRow);
  EXPECT_EQ(last_token_, 0);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 1);
  EXPECT_EQ(seq_len_, 21);
}

TEST_F(OneRow, ADraftThatIsNoTokenIsNeverRight) {
  token_ids_[1] = kNanRow;
  EXPECT_THAT(Verify({kNan, 9, 2, 8}), ElementsAre());
  EXPECT_EQ(token_, kNanRow);
}

TEST_F(OneRow, ARowWithoutDraftsHasOneToken) {
  first_verified_ = -1;  // a chunk of a prompt
  EXPECT_THAT(Verify({5, 9, 2, 8}), ElementsAre(8));
  EXPECT_EQ(last_token_, 8);
  EXPECT_EQ(sample_index_, (int64_t{1} << 40) + 1);
  EXPECT_EQ(seq_len_, 21);
  EXPECT_EQ(drafted_len_, 24);
}

TEST_F(OneRow, ARowThatDoesNotSampleChangesNothing) {
  for (const int32_t slot : {-1, 1}) {  // there is one slot
    sample_slot_ = slot;
    EXPECT_THAT(Verify({5, 9, 2, 8}), ElementsAre());
    EXPECT_EQ(token_, kNotSampled);
    EXPECT_EQ(last_token_, 7);
    EXPECT_EQ(sample_index_, int64_t{1} << 40);
    EXPECT_EQ(seq_len_, 21);
    EXPECT_EQ(drafted_len_, 24);
  }
}

TEST_F(OneRow, MoreDraftsThanThereIsRoomForAreCut) {
  args_.max_drafts = 2;
  new_tokens_[3] = -9;
  EXPECT_THAT(Verify({5, 9, 2, 8}), ElementsAre(5, 9, 8));
}

TEST_F(OneRow, ResultsGoToTheOutputThatRefillNames) {
  int32_t results[3 * 7];  // a token, a count and five tokens, three times
  std::fill_n(results, 21, -9);
  int32_t output = 0;
  int32_t place = -9;
  args_.arrays.output = &output;
  args_.output_stride = 7;
  args_.tokens = results;
  args_.num_new = results + 1;
  args_.new_tokens = results + 2;
  args_.last_place = &place;
  const auto verify = [&](std::vector<int32_t> chosen) {
    std::copy_n(chosen.begin(), 3, chosen_ + 1);
    chosen_[0] = chosen[3];
    ASSERT_EQ(CheckVerifyDrafts(args_), absl::OkStatus());
    VerifyDraftsOnHost(args_);
  };
  verify({5, 9, 4, 8});  // no output: nothing happens
  EXPECT_THAT(results, testing::Each(-9));
  EXPECT_EQ(sample_index_, int64_t{1} << 40);
  EXPECT_EQ(last_token_, 7);
  EXPECT_EQ(seq_len_, 21);
  EXPECT_EQ(place, -1);
  output = 2;
  verify({5, 9, 4, 8});
  EXPECT_THAT(results, ElementsAre(-9, -9, -9, -9, -9, -9, -9, 4, 3, 5, 9, 4, -9, -9, -9, -9, -9,
                                   -9, -9, -9, -9));
  EXPECT_EQ(last_token_, 4);
  EXPECT_EQ(place, 3);  // of the third token of the row
  output = 1;
  sample_slot_ = -1;
  verify({5, 9, 4, 8});
  EXPECT_EQ(results[0], kNotSampled);
  EXPECT_EQ(results[1], 0);
  EXPECT_EQ(place, -1);
  sample_slot_ = 0;
  verify({5, 9, 2, 8});
  EXPECT_EQ(place, 0);  // of the last one
  verify({kNan, 9, 2, 8});
  EXPECT_EQ(place, -1);
  args_.arrays.output = nullptr;
  EXPECT_EQ(CheckVerifyDrafts(args_).message(), "arrays.output: expected an array, got none");
  args_.output_stride = -1;
  EXPECT_EQ(CheckVerifyDrafts(args_).message(), "output_stride: expected at least 0, got -1");
}

TEST_F(OneRow, BadInputIsRefusedWithNamesAndValues) {
  const auto refusal = [&] { return std::string(CheckVerifyDrafts(args_).message()); };
  args_.num_rows = 2;
  EXPECT_EQ(refusal(), "num_rows: expected at most 1, got 2");
  args_.num_rows = -1;
  EXPECT_EQ(refusal(), "num_rows: expected at least 0, got -1");
  args_.num_rows = 1;
  args_.max_drafts = kMaxDrafts + 1;
  EXPECT_EQ(refusal(), "max_drafts: expected 0 to 16, got 17");
  args_.max_drafts = 4;
  args_.new_tokens = nullptr;
  EXPECT_EQ(refusal(), "new_tokens: expected an array, got none");
  args_.new_tokens = new_tokens_;
  args_.arrays.first_verified = nullptr;
  EXPECT_EQ(refusal(), "arrays.first_verified: expected an array, got none");
  args_.arrays.first_verified = &first_verified_;
  args_.place_tokens.tokens = history_;
  EXPECT_EQ(refusal(), "arrays.slot_mapping: expected an array, got none");
  args_.num_rows = 0;
  EXPECT_EQ(refusal(), "");
}

// What the header says, token by token. All other memory must stay as it is.
void VerifyByDefinition(const VerifyDraftsArgs& args) {
  for (int r = 0; r < args.num_rows; ++r) {
    const StepArrays& arrays = args.arrays;
    const int32_t slot = arrays.sample_slot[r];
    if (slot < 0) {
      args.tokens[r] = kNotSampled;
      args.num_new[r] = 0;
      continue;
    }
    // The row's tokens with what follows each of them.
    std::vector<int32_t> drafts;
    std::vector<int32_t> chosen;
    if (arrays.first_verified[r] >= 0) {
      drafts.assign(arrays.token_ids + arrays.query_start_loc[r] + 1,
                    arrays.token_ids + arrays.query_start_loc[r + 1]);
      chosen.assign(args.chosen + arrays.first_verified[r],
                    args.chosen + arrays.first_verified[r] + drafts.size());
    }
    chosen.push_back(args.chosen[r]);
    std::vector<int32_t> text;
    for (size_t i = 0; i < chosen.size() && chosen[i] != kNanRow; ++i) {
      text.push_back(chosen[i]);
      if (i < drafts.size() && drafts[i] != chosen[i]) break;
    }
    const int n = static_cast<int>(text.size());
    args.num_new[r] = n;
    args.tokens[r] = n == 0 ? kNanRow : text.back();
    std::copy(text.begin(), text.end(), args.new_tokens + r * (args.max_drafts + 1));
    args.slots.last_token[slot] = n == 0 ? 0 : text.back();
    args.slots.sample_index[slot] += std::max(n, 1);
    args.slots.seq_len[slot] += std::max(n, 1) - 1;
    const int32_t next = arrays.context_lens[r] + 1;
    if (args.slots.history.tokens != nullptr && n > 1) {
      std::copy(text.begin(), text.end() - 1, args.slots.history.row(slot) + next);
    }
    for (int i = 0; args.place_tokens.tokens != nullptr && i + 1 < n; ++i) {
      const int64_t place =
          arrays.group_slots(args.place_tokens.group)[arrays.query_start_loc[r] + 1 + i];
      if (place >= 0) args.place_tokens.tokens[place] = text[i];
    }
    if (args.slots.drafted_len != nullptr && !drafts.empty()) {
      args.slots.drafted_len[slot] = std::min(args.slots.drafted_len[slot], next - 1 + n);
    }
  }
}

TEST(VerifyDraftsTest, FollowsTheDefinition) {
  std::mt19937 random(1);
  int64_t num_accepted = 0;
  for (int i = 0; i < 600; ++i) {
    const SpeculationShape shape = DrawSpeculationShape(random);
    const auto carve = [&](ArrayCarver& carver) { return CarveVerifyDrafts(shape, carver); };
    BuilderMemory<VerifyDraftsArgs> memory(carve);
    BuilderMemory<VerifyDraftsArgs> expected(carve);
    DrawVerifyDrafts(random, shape, memory.args());
    std::copy_n(memory.base(), memory.num_bytes(), expected.base());
    ASSERT_EQ(CheckVerifyDrafts(memory.args()), absl::OkStatus());
    const AllocationCounter allocations;
    VerifyDraftsOnHost(memory.args());
    ASSERT_EQ(allocations.count(), 0);
    VerifyByDefinition(expected.args());
    ASSERT_EQ(memory.FirstDifference(expected.base()), "") << "case " << i << ": " << shape;
    for (int r = 0; r < shape.num_rows; ++r) {
      num_accepted += std::max(memory.args().num_new[r] - 1, 0);
    }
  }
  EXPECT_GT(num_accepted, 5000);
}

}  // namespace
}  // namespace reprise
