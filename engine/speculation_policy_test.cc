#include "reprise/engine/speculation_policy.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns the draft counts of `num_rows` rows. The model accepts up to `num_right` drafts per row.
std::vector<int> Lengths(DraftLength& length, int num_rows, int most, int num_right) {
  std::vector<int> lengths;
  for (int i = 0; i < num_rows; ++i) {
    lengths.push_back(length.Next(most));
    if (lengths.back() > 0) length.Observe(lengths.back(), std::min(lengths.back(), num_right));
  }
  return lengths;
}

TEST(DraftLengthTest, StaysAtTheMaximumWhileAllDraftsAreAccepted) {
  DraftLength length;
  EXPECT_THAT(Lengths(length, 20, 4, 4), Each(4));
}

TEST(DraftLengthTest, StartsWithTheMaximumAndShrinksToZero) {
  DraftLength length;
  EXPECT_EQ(length.Next(4), 4);
  length.Observe(4, 4);
  const std::vector<int> lengths = Lengths(length, 60, 4, 0);
  EXPECT_EQ(lengths.front(), 4);
  EXPECT_TRUE(std::is_sorted(lengths.begin(), lengths.begin() + 20, std::greater<>()));
  EXPECT_EQ(lengths[19], 0);
  // From then on, there are only probes.
  EXPECT_EQ(std::count(lengths.begin() + 20, lengths.begin() + 52, 1), 2);
  EXPECT_EQ(std::count(lengths.begin() + 20, lengths.begin() + 52, 0), 30);
}

TEST(DraftLengthTest, SpeculatesForSomeRowsIfTheFirstDraftsAreRejected) {
  DraftLength length;
  const std::vector<int> lengths = Lengths(length, 11 + DraftLength::kProbeInterval, 8, 0);
  EXPECT_EQ(lengths.front(), 8);
  EXPECT_EQ(std::count(lengths.begin(), lengths.begin() + 11, 0), 0);
  EXPECT_EQ(std::count(lengths.begin() + 11, lengths.end(), 0), DraftLength::kProbeInterval - 1);
  EXPECT_EQ(lengths.back(), 1);
}

TEST(DraftLengthTest, GrowsAgainFromAcceptedProbes) {
  DraftLength length;
  for (int i = 0; i < 20; ++i) length.Observe(4, 0);
  const std::vector<int> lengths = Lengths(length, 60, 6, 6);
  EXPECT_EQ(lengths.front(), 0);
  EXPECT_EQ(lengths.back(), 6);
}

TEST(DraftLengthTest, DraftCountIsOneMoreThanTheAcceptedAverage) {
  DraftLength length;
  const std::vector<int> lengths = Lengths(length, 30, 8, 2);
  EXPECT_EQ(lengths.back(), 3);
}

TEST(DraftLengthTest, FullyAcceptedShortRowDoesNotShortenTheNextRow) {
  DraftLength length;
  length.Observe(6, 6);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(length.Next(1), 1);
    length.Observe(1, 1);
  }
  EXPECT_EQ(length.Next(6), 6);
  EXPECT_EQ(length.Next(0), 0);
}

TEST(SpeculationPolicyTest, RejectsValuesOutOfRange) {
  EXPECT_TRUE(CheckSpeculationPolicy({}).ok());
  EXPECT_TRUE(CheckSpeculationPolicy({.num_drafts = kMaxDrafts}).ok());
  const absl::Status many = CheckSpeculationPolicy({.num_drafts = kMaxDrafts + 1});
  EXPECT_TRUE(absl::IsInvalidArgument(many));
  EXPECT_THAT(many.message(), HasSubstr("speculation.num_drafts must be in [0, 16]: got 17"));
  EXPECT_THAT(CheckSpeculationPolicy({.num_drafts = -1}).message(), HasSubstr("got -1"));
  EXPECT_THAT(CheckSpeculationPolicy({.num_drafts = 1, .max_speculating_rows = -2}).message(),
              HasSubstr("speculation.max_speculating_rows must be at least 0: got -2"));
}

TEST(SpeculationStatisticsTest, CountsByDraftPosition) {
  SpeculationStatistics statistics;
  EXPECT_EQ(statistics.tokens_per_row(), 0);
  statistics.Add(3, 2, 3);
  statistics.Add(1, 0, 1);
  EXPECT_EQ(statistics.num_rows, 2);
  EXPECT_EQ(statistics.num_drafts, 4);
  EXPECT_EQ(statistics.num_accepted, 2);
  EXPECT_EQ(statistics.tokens_per_row(), 2);
  EXPECT_THAT(
      std::vector<int64_t>(statistics.num_drafts_at.begin(), statistics.num_drafts_at.begin() + 4),
      ElementsAre(2, 1, 1, 0));
  EXPECT_THAT(std::vector<int64_t>(statistics.num_accepted_at.begin(),
                                   statistics.num_accepted_at.begin() + 4),
              ElementsAre(1, 1, 0, 0));
  statistics.Add(2, 2, 9);  // a tree
  EXPECT_EQ(statistics.num_drafts, 13);
  EXPECT_EQ(statistics.num_drafts_at[1], 2);
  EXPECT_EQ(statistics.num_drafts_at[2], 1);
}

}  // namespace
}  // namespace reprise
