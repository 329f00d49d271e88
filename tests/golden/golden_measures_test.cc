#include "tests/golden/golden_measures.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A track of one prompt; each row of `logits` is of the tokens `kept` of `vocab_size`.
GoldenTrack TrackOf(int vocab_size, TokenList kept, std::vector<float> logits) {
  return {.vocab_size = vocab_size, .logit_tokens = std::move(kept), .logits = std::move(logits)};
}

TEST(GoldenMeasuresTest, ErrorsAreOfTheDifference) {
  const GoldenTrack all = TrackOf(3, {0, 1, 2}, {1, 4, 2});
  EXPECT_EQ(MaxError({1, 2, 3}, all.AllLogits()), 2);
  EXPECT_DOUBLE_EQ(RmsError({1, 2, 3}, all.AllLogits()), std::sqrt((4.0 + 1.0) / 3));
  EXPECT_EQ(MaxError({}, all.LogitsBefore(0, 0)), 0);
  EXPECT_EQ(RmsError({}, all.LogitsBefore(0, 0)), 0);
}

TEST(GoldenMeasuresTest, EachRowIsComparedWhereItIsKept) {
  // Three rows of four logits, of which those of tokens 1 and 3 are kept.
  const GoldenTrack track = TrackOf(4, {1, 3}, {10, 11, 20, 21, 30, 31});
  EXPECT_EQ(MaxError({9, 10, 9, 11, 9, 20, 9, 21, 9, 30, 9, 31}, track.AllLogits()), 0);
  EXPECT_EQ(MaxError({9, 10, 9, 11, 9, 20, 9, 24, 9, 30, 9, 31}, track.AllLogits()), 3);
  EXPECT_EQ(MaxError({9, 20, 9, 21, 9, 30, 9, 33}, track.LogitsBefore(1, 2)), 2);
  EXPECT_DOUBLE_EQ(RmsError({9, 20, 9, 21, 9, 30, 9, 33}, track.LogitsBefore(1, 2)), 1);
}

TEST(GoldenMeasuresTest, MedianErrorTakesTheMedianOverRows) {
  // The second row has no error, and the third a large one: the first row is the median.
  const GoldenTrack odd = TrackOf(2, {0, 1}, {0, 0, 0, 0, 0, 0});
  EXPECT_DOUBLE_EQ(MedianError({3, 4, 0, 0, 100, 100}, odd.AllLogits()), std::sqrt(12.5));
  EXPECT_DOUBLE_EQ(MedianError({6, 6, 2, 2}, odd.LogitsBefore(0, 2)), 4);
  EXPECT_DOUBLE_EQ(MedianError({-6, 6}, odd.LogitsBefore(0, 1)), 6);
  // Only kept columns count.
  const GoldenTrack kept = TrackOf(3, {2}, {1, 1, 1, 1});
  EXPECT_DOUBLE_EQ(MedianError({9, 9, 1, 9, 9, 3, 9, 9, 5, 9, 9, 1}, kept.AllLogits()), 1);
  EXPECT_EQ(MedianError({}, kept.LogitsBefore(0, 0)), 0);
}

TEST(GoldenMeasuresTest, FoldersWithExpertsHaveMedians) {
  const auto mixtral = LoadGolden("mixtral");
  ASSERT_TRUE(mixtral.ok()) << mixtral.status();
  EXPECT_TRUE(mixtral->has_bf16_medians);
  for (const GoldenPrompt& prompt : mixtral->prompts) {
    EXPECT_EQ(prompt.greedy.bf16_median, prompt.forced.bf16_median);
    ASSERT_TRUE(prompt.forced.bf16_median.has_value());
    EXPECT_GT(*prompt.forced.bf16_median, 0);
    EXPECT_LT(*prompt.forced.bf16_median, prompt.forced.bf16_rms);
  }
  for (const char* const name : {"phi3", "qwen3-moe"}) {
    const auto golden = LoadGolden(name);
    ASSERT_TRUE(golden.ok()) << golden.status();
    EXPECT_FALSE(golden->has_bf16_medians) << name;
    EXPECT_FALSE(golden->prompts[0].forced.bf16_median.has_value()) << name;
  }
}

TEST(GoldenMeasuresTest, ReadsTheVocabularySizeOfAWrappedConfig) {
  const auto golden = LoadGolden("gemma3-wrapped");
  ASSERT_TRUE(golden.ok()) << golden.status();
  EXPECT_EQ(golden->vocab_size, 128);
  EXPECT_EQ(golden->prompts[4].prompt.size(), 70u);
  EXPECT_EQ(golden->prompts[4].forced.tokens.size(), 24u);
  EXPECT_EQ(golden->prompts[4].forced.logit_tokens.size(), 64u);
}

TEST(GoldenMeasuresTest, NothingFiniteIsNear) {
  const float nan = std::nanf("");
  const GoldenTrack track = TrackOf(3, {0, 1}, {1, 1});
  EXPECT_EQ(MaxError({1, nan, 1}, track.AllLogits()), kInfinity);
  EXPECT_EQ(MaxError({1, 1, nan}, track.AllLogits()), kInfinity);  // of a token that is not kept
  EXPECT_EQ(RmsError({1, 1, 1}, TrackOf(3, {0, 1}, {nan, 1}).AllLogits()), kInfinity);
  EXPECT_EQ(MedianError({1, 1, nan}, track.AllLogits()), kInfinity);
  EXPECT_EQ(MaxError({INFINITY}, TrackOf(1, {0}, {INFINITY}).AllLogits()), kInfinity);
}

TEST(GoldenMeasuresTest, AMissingRowIsAsFarAsCanBe) {
  const GoldenTrack track = TrackOf(2, {1}, {1, 2});
  EXPECT_EQ(MaxError({0, 1}, track.AllLogits()), kInfinity);
  EXPECT_EQ(RmsError({0, 1, 0, 2, 0, 3}, track.AllLogits()), kInfinity);
  EXPECT_EQ(RmsError({1, 2}, track.AllLogits()), kInfinity);
  EXPECT_EQ(MedianError({1, 2}, track.AllLogits()), kInfinity);
  EXPECT_EQ(MaxError({}, track.AllLogits()), kInfinity);
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
