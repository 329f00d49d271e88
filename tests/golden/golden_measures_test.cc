#include "tests/golden/golden_measures.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(GoldenMeasuresTest, ErrorsAreOfTheDifference) {
  EXPECT_EQ(MaxError({1, 2, 3}, {1, 4, 2}), 2);
  EXPECT_DOUBLE_EQ(RmsError({1, 2, 3}, {1, 4, 2}), std::sqrt((4.0 + 1.0) / 3));
  EXPECT_EQ(MaxError({}, {}), 0);
  EXPECT_EQ(RmsError({}, {}), 0);
}

TEST(GoldenMeasuresTest, NothingFiniteIsNear) {
  const float nan = std::nanf("");
  EXPECT_EQ(MaxError({1, nan}, {1, 1}), kInfinity);
  EXPECT_EQ(RmsError({1, 1}, {nan, 1}), kInfinity);
  EXPECT_EQ(MaxError({INFINITY}, {INFINITY}), kInfinity);
}

TEST(GoldenMeasuresTest, AMissingRowIsAsFarAsCanBe) {
  EXPECT_EQ(MaxError({1}, {1, 2}), kInfinity);
  EXPECT_EQ(RmsError({1, 2}, {1}), kInfinity);
}

TEST(GoldenMeasuresTest, CountsTokensUpToTheFirstThatDiffers) {
  const GoldenTrack golden = {.tokens = {5, 6, 7}, .logits = {}};
  EXPECT_EQ(NumEqualTokens({5, 6, 7}, golden), 3);
  EXPECT_EQ(NumEqualTokens({5, 0, 7}, golden), 1);
  EXPECT_EQ(NumEqualTokens({5, 6}, golden), 2);
  EXPECT_EQ(NumEqualTokens({5, 6, 7, 8}, golden), 3);
}

TEST(GoldenMeasuresTest, CountsTokensUpToTheFirstCloseChoice) {
  GoldenPrompt golden;
  golden.margins = {0.5f, 0.1f, 0.0009f, 0.7f};
  EXPECT_EQ(NumDecidedTokens(golden, 1e-3f), 2);
  EXPECT_EQ(NumDecidedTokens(golden, 1e-5f), 4);
  EXPECT_EQ(NumDecidedTokens({}, 1e-3f), 0);
}

}  // namespace
}  // namespace reprise
