#include "reprise/runner/speculation/ngram_drafts.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/runner/testing/speculation_cases.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kUntouched = 77;

// The four drafts of one row with this text; kUntouched if nothing matches.
class OneText : public ::testing::Test {
 protected:
  OneText() {
    args_.slots.num_slots = 1;
    args_.arrays.token_ids = token_ids_;
    args_.arrays.query_start_loc = query_start_loc_;
    args_.arrays.context_lens = &context_len_;
    args_.arrays.table_row = &table_row_;
    args_.arrays.num_proposed = &num_proposed_;
    args_.arrays.max_rows = 1;
    args_.num_rows = 1;
  }

  std::vector<int32_t> Propose(std::vector<int32_t> text) {
    context_len_ = static_cast<int32_t>(text.size()) - 1;
    args_.slots.history = {text.data(), context_len_};
    std::fill_n(token_ids_, 7, kUntouched);
    token_ids_[1] = text.back();
    EXPECT_EQ(CheckNgramDrafts(args_), absl::OkStatus());
    NgramDraftsOnHost(args_);
    EXPECT_EQ(token_ids_[0], kUntouched);
    EXPECT_EQ(token_ids_[6], kUntouched);
    return {token_ids_ + 2, token_ids_ + 6};
  }

  int32_t token_ids_[7];
  int32_t query_start_loc_[2] = {1, 6};
  int32_t context_len_ = 0;
  int32_t table_row_ = 0;
  int32_t num_proposed_ = 4;
  NgramDraftsArgs args_;
};

TEST_F(OneText, ProposesTokensAfterTheEarlierOccurrence) {
  EXPECT_THAT(Propose({5, 6, 7, 9, 7, 5, 6}), ElementsAre(7, 9, 7, 5));
}

TEST_F(OneText, ContinuesALoop) {
  EXPECT_THAT(Propose({1, 2, 3, 2, 3}), ElementsAre(2, 3, 2, 3));
  EXPECT_THAT(Propose({1, 4, 4}), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(Propose({1, 2, 3, 1, 2, 3, 1}), ElementsAre(2, 3, 1, 2));
}

TEST_F(OneText, PrefersALongerMatchToALaterMatch) {
  EXPECT_THAT(Propose({8, 5, 6, 1, 6, 2, 8, 5, 6}), ElementsAre(1, 6, 2, 8));
}

TEST_F(OneText, PrefersTheLatestOfEqualMatches) {
  EXPECT_THAT(Propose({5, 6, 1, 9, 5, 6, 2, 8, 5, 6}), ElementsAre(2, 8, 5, 6));
  args_.max_ngram = 1;  // all matches then have the same length
  EXPECT_THAT(Propose({8, 5, 6, 1, 6, 2, 8, 5, 6}), ElementsAre(2, 8, 5, 6));
}

TEST_F(OneText, IgnoresMatchesBelowMinNgram) {
  args_.min_ngram = 2;
  EXPECT_THAT(Propose({6, 1, 2, 6}), ::testing::Each(kUntouched));
  EXPECT_THAT(Propose({2, 6, 1, 2, 6}), ElementsAre(1, 2, 6, 1));
}

TEST_F(OneText, NothingBeforeTheTextMatches) {
  EXPECT_THAT(Propose({6}), ::testing::Each(kUntouched));
  EXPECT_THAT(Propose({1, 2, 3}), ::testing::Each(kUntouched));
  args_.min_ngram = 2;
  // the earlier "6 6" would begin before the text
  EXPECT_THAT(Propose({6, 6}), ::testing::Each(kUntouched));
}

TEST_F(OneText, UnknownTokensMatchNothingAndAreNoDrafts) {
  EXPECT_THAT(Propose({-1, -1, -1}), ::testing::Each(kUntouched));
  // The match is "6", not "-1 6".
  EXPECT_THAT(Propose({-1, 6, 1, 6, 2, -1, 6}), ElementsAre(2, 0, 6, 2));
}

TEST_F(OneText, KeepsTokenIdsOfRowsWithoutDraftsOrSlots) {
  num_proposed_ = 0;
  EXPECT_THAT(Propose({6, 6, 6}), ::testing::Each(kUntouched));
  num_proposed_ = 4;
  for (const int32_t slot : {-1, 1}) {
    table_row_ = slot;
    EXPECT_THAT(Propose({6, 6, 6}), ::testing::Each(kUntouched));
  }
}

TEST_F(OneText, RejectsBadInputWithNamesAndValues) {
  const auto refusal = [&] { return std::string(CheckNgramDrafts(args_).message()); };
  args_.num_rows = 2;
  EXPECT_EQ(refusal(), "num_rows: expected at most 1, got 2");
  args_.num_rows = 1;
  args_.max_ngram = kMaxNgram + 1;
  EXPECT_EQ(refusal(), "max_ngram: expected 1 to 16, got 17");
  args_.max_ngram = 3;
  args_.min_ngram = 4;
  EXPECT_EQ(refusal(), "min_ngram: expected 1 to 3, got 4");
  args_.min_ngram = 0;
  EXPECT_EQ(refusal(), "min_ngram: expected 1 to 3, got 0");
  args_.min_ngram = 1;
  EXPECT_EQ(refusal(), "slots.history: expected an array, got none");
}

// The definition in the header: tries n-grams from the longest to the shortest, and positions from
// the last to the first, and compares token by token.
std::vector<int32_t> DraftsByDefinition(std::vector<int32_t> text, int min_ngram, int max_ngram,
                                        int num_drafts) {
  const int size = static_cast<int>(text.size());
  for (int n = std::min(max_ngram, size); n >= min_ngram; --n) {
    const auto suffix = text.end() - n;
    if (std::any_of(suffix, text.end(), [](int32_t token) { return token < 0; })) continue;
    for (int end = size - 2; end >= n - 1; --end) {
      if (!std::equal(suffix, text.end(), text.begin() + end - n + 1)) continue;
      for (int i = 0; i < num_drafts; ++i) text.push_back(std::max(text[end + 1 + i], 0));
      return {text.begin() + size, text.end()};
    }
  }
  return {};
}

TEST(NgramDraftsTest, FollowsTheDefinition) {
  std::mt19937 random(2);
  int num_found = 0;
  int num_not_found = 0;
  for (int i = 0; i < 400; ++i) {
    const SpeculationShape shape = DrawSpeculationShape(random);
    const auto carve = [&](ArrayCarver& carver) { return CarveNgramDrafts(shape, carver); };
    BuilderMemory<NgramDraftsArgs> memory(carve);
    BuilderMemory<NgramDraftsArgs> expected(carve);
    DrawNgramDrafts(random, shape, memory.args());
    std::copy_n(memory.base(), memory.num_bytes(), expected.base());
    ASSERT_EQ(CheckNgramDrafts(memory.args()), absl::OkStatus());
    const AllocationCounter allocations;
    NgramDraftsOnHost(memory.args());
    ASSERT_EQ(allocations.count(), 0);
    const StepArrays& arrays = expected.args().arrays;
    for (int r = 0; r < shape.num_rows; ++r) {
      if (arrays.num_proposed[r] == 0) continue;
      int32_t* tokens = arrays.token_ids + arrays.query_start_loc[r];
      const int32_t* history = expected.args().slots.history.row(arrays.table_row[r]);
      std::vector<int32_t> text(history, history + arrays.context_lens[r]);
      text.push_back(tokens[0]);
      const std::vector<int32_t> drafts =
          DraftsByDefinition(text, shape.min_ngram, shape.max_ngram, arrays.num_proposed[r]);
      std::copy(drafts.begin(), drafts.end(), tokens + 1);
      ++(drafts.empty() ? num_not_found : num_found);
    }
    ASSERT_EQ(memory.FirstDifference(expected.base()), "") << "case " << i << ": " << shape;
  }
  EXPECT_GT(num_found, 2000);
  EXPECT_GT(num_not_found, 500);
}

}  // namespace
}  // namespace reprise
