#include "reprise/engine/speculation/predicted_text.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A growing text, and its position in the predicted text.
class Follower {
 public:
  explicit Follower(std::vector<int32_t> expected)
      : expected_(std::move(expected)), predicted_(expected_) {}

  void Add(const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) {
      text_.push_back(token);
      predicted_.Follow(text_);
    }
  }
  std::vector<int32_t> After(int num_ahead, int most) const {
    const absl::Span<const int32_t> tokens = predicted_.After(num_ahead, most);
    return {tokens.begin(), tokens.end()};
  }

 private:
  std::vector<int32_t> expected_;
  std::vector<int32_t> text_;
  PredictedText predicted_;
};

TEST(PredictedTextTest, ContinuesWhileTheTextMatchesThePrediction) {
  Follower follower({1, 2, 3, 4, 5, 6});
  EXPECT_THAT(follower.After(0, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(follower.After(2, 3), ElementsAre(3, 4, 5)) << "two tokens are in flight";
  follower.Add({1, 2});
  EXPECT_THAT(follower.After(0, 2), ElementsAre(3, 4));
  EXPECT_THAT(follower.After(3, 2), ElementsAre(6)) << "the end of the prediction";
  EXPECT_THAT(follower.After(4, 2), IsEmpty());
  EXPECT_THAT(follower.After(0, 0), IsEmpty());
  follower.Add({3, 4, 5, 6});
  EXPECT_THAT(follower.After(0, 2), IsEmpty());
  EXPECT_THAT(Follower({}).After(0, 2), IsEmpty());
}

TEST(PredictedTextTest, FindsThePositionAfterAReplacedToken) {
  Follower follower({1, 2, 3, 4, 5, 6});
  follower.Add({1, 2, 9});
  EXPECT_THAT(follower.After(0, 2), IsEmpty()) << "the prediction does not contain 9";
  follower.Add({4});
  EXPECT_THAT(follower.After(0, 2), ElementsAre(5, 6));
}

TEST(PredictedTextTest, FindsThePositionAfterDeletionsAndInsertions) {
  Follower shorter({1, 2, 3, 4, 5, 6});
  shorter.Add({1, 5});
  EXPECT_THAT(shorter.After(0, 2), ElementsAre(6));
  Follower longer({1, 2, 3, 4, 5, 6});
  longer.Add({1, 2, 7, 8, 9, 2, 3});
  EXPECT_THAT(longer.After(0, 2), ElementsAre(4, 5));
}

TEST(PredictedTextTest, LongestSuffixMatchDeterminesThePosition) {
  Follower follower({1, 2, 3, 9, 5, 2, 3, 8, 7, 2, 3, 4});
  follower.Add({1, 5, 2, 3});
  EXPECT_THAT(follower.After(0, 1), ElementsAre(8));
  follower.Add({6, 2, 3});
  EXPECT_THAT(follower.After(0, 1), ElementsAre(4)) << "the next of equally long matches";
  follower.Add({6, 2, 3});
  EXPECT_THAT(follower.After(0, 1), ElementsAre(4)) << "no match follows: the last one";
}

TEST(PredictedTextTest, ComparesOnlyTheEndOfLongTexts) {
  std::vector<int32_t> expected(100, 1);
  expected.push_back(2);
  Follower follower(expected);
  follower.Add({3});
  follower.Add(std::vector<int32_t>(40, 1));
  EXPECT_THAT(follower.After(0, 1), ElementsAre(1));
}

}  // namespace
}  // namespace reprise
