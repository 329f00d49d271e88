#include "reprise/attention/testing/pairwise.h"

#include <set>
#include <tuple>

#include "gtest/gtest.h"

namespace reprise {
namespace {

size_t NumPairs(const std::vector<std::vector<int>>& rows) {
  std::set<std::tuple<size_t, int, size_t, int>> pairs;
  for (const std::vector<int>& row : rows) {
    for (size_t a = 0; a < row.size(); ++a) {
      for (size_t b = a + 1; b < row.size(); ++b) pairs.insert({a, row[a], b, row[b]});
    }
  }
  return pairs.size();
}

TEST(PairwiseTest, EveryPairOfChoicesOccursInFewRows) {
  Random random(3);
  // 2 * 3 + 2 * 4 + 3 * 4 pairs.
  const auto rows = PairwiseRows({2, 3, 4}, random);
  EXPECT_EQ(NumPairs(rows), 26u);
  EXPECT_GE(rows.size(), 12u);
  EXPECT_LE(rows.size(), 15u);
}

TEST(PairwiseTest, ThirtySwitchesAndTwoLongFieldsNeedAtMost100Rows) {
  std::vector<int> num_choices(30, 2);
  num_choices.push_back(9);
  num_choices.push_back(8);
  Random random(4);
  const auto rows = PairwiseRows(num_choices, random);
  // 30 * 29 / 2 pairs of switches, 30 switches with each choice of the two larger fields, and these
  // two.
  EXPECT_EQ(NumPairs(rows), 435u * 4 + 30 * 2 * 17 + 72);
  EXPECT_LE(rows.size(), 100u);
}

TEST(PairwiseTest, FieldsOfOneChoiceAreAllowed) {
  Random random(5);
  EXPECT_EQ(PairwiseRows({1, 1}, random).size(), 1u);
  EXPECT_EQ(PairwiseRows({1, 3}, random).size(), 3u);
}

}  // namespace
}  // namespace reprise
