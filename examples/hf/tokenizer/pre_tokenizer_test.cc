#include "reprise/hf/tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Place = PreTokenizer::Place;

std::vector<std::string> Pieces(const std::vector<PreTokenizerStep>& steps, std::string_view text,
                                Place place = Place::kBeginning) {
  const absl::StatusOr<PreTokenizer> made = PreTokenizer::Create(steps);
  EXPECT_TRUE(made.ok()) << made.status();
  const absl::StatusOr<PreTokenized> result = made->Run(text, place);
  EXPECT_TRUE(result.ok()) << result.status();
  std::vector<std::string> pieces;
  for (size_t i = 0; i < result->ranges.size(); ++i) pieces.emplace_back(result->piece(i));
  return pieces;
}

TEST(PreTokenizerTest, WithoutStepsATextIsOnePiece) {
  EXPECT_THAT(Pieces({}, "a b"), ElementsAre("a b"));
  EXPECT_THAT(Pieces({}, ""), IsEmpty());
}

// Expected values, here and below: Hugging Face's tokenizers 0.23.
TEST(PreTokenizerTest, ASpaceIsPutWhereThereIsNone) {
  const ReplaceStep replace = {" ", "▁"};
  const SpaceStep everywhere = {"▁", SpaceStep::kEverywhere};
  const SpaceStep first = {"▁", SpaceStep::kFirst};
  for (const Place place : {Place::kBeginning, Place::kLater}) {
    EXPECT_THAT(Pieces({replace, everywhere}, "a b", place), ElementsAre("▁a▁b"));
    EXPECT_THAT(Pieces({replace, everywhere}, " a b", place), ElementsAre("▁a▁b"));
  }
  EXPECT_THAT(Pieces({replace, first}, "a b"), ElementsAre("▁a▁b"));
  EXPECT_THAT(Pieces({replace, first}, " a b"), ElementsAre("▁a▁b"));
  EXPECT_THAT(Pieces({replace, first}, "a b", Place::kLater), ElementsAre("a▁b"));
  EXPECT_THAT(Pieces({replace, first}, ""), IsEmpty());
}

TEST(PreTokenizerTest, MetaspaceCutsBeforeEachSpace) {
  const SplitStep cut = {
      .pattern = "▁", .kind = SplitStep::kLiteral, .behavior = SplitBehavior::kMergedWithNext};
  EXPECT_THAT(Pieces({ReplaceStep{" ", "▁"}, SpaceStep{"▁"}, cut}, "Hey my  friend"),
              ElementsAre("▁Hey", "▁my", "▁", "▁friend"));
}

TEST(PreTokenizerTest, StepsCutWhatThoseBeforeThemLeave) {
  EXPECT_THAT(Pieces({SplitStep{.pattern = R"(\s+)", .behavior = SplitBehavior::kRemoved},
                      SplitStep{.pattern = R"(\p{N})"}},
                     " ab12  c3 "),
              ElementsAre("ab", "1", "2", "c", "3"));
  // The text of one piece is not seen from another: "$" ends each.
  EXPECT_THAT(Pieces({SplitStep{.pattern = "-"}, SplitStep{.pattern = "a$"}}, "aa-ba"),
              ElementsAre("a", "a", "-", "b", "a"));
}

TEST(PreTokenizerTest, TheFirstPieceIsTheBeginningUnlessSomethingWasRemovedThere) {
  const SplitStep remove = {
      .pattern = " ", .kind = SplitStep::kLiteral, .behavior = SplitBehavior::kRemoved};
  const SpaceStep first = {"▁", SpaceStep::kFirst};
  EXPECT_THAT(Pieces({remove, first}, "a b"), ElementsAre("▁a", "b"));
  EXPECT_THAT(Pieces({remove, first}, " a b"), ElementsAre("a", "b"));
  EXPECT_THAT(Pieces({remove, SpaceStep{"▁"}}, " a b"), ElementsAre("▁a", "▁b"));
}

TEST(PreTokenizerTest, WhatStandsBetweenMatchesMayBeTheMatch) {
  EXPECT_THAT(Pieces({SplitStep{.pattern = "[a-z]+",
                                .behavior = SplitBehavior::kRemoved,
                                .of = SplitStep::kOthers}},
                     "ab, cd!"),
              ElementsAre("ab", "cd"));
}

TEST(PreTokenizerTest, APieceThatBecomesNothingIsNone) {
  EXPECT_THAT(Pieces({SplitStep{.pattern = "x"}, ReplaceStep{"x", ""}}, "axb"),
              ElementsAre("a", "b"));
}

TEST(PreTokenizerTest, RefusesPatternsThatAreNone) {
  EXPECT_THAT(std::string(PreTokenizer::Create({SplitStep{.pattern = "("}}).status().message()),
              HasSubstr("split pattern: "));
  EXPECT_THAT(
      std::string(
          PreTokenizer::Create({SplitStep{.kind = SplitStep::kLiteral}}).status().message()),
      HasSubstr("may match nothing at all"));
}

TEST(PreTokenizerTest, APatternThatRunsAwayIsStopped) {
  const PreTokenizer runaway = *PreTokenizer::Create({SplitStep{.pattern = "(?:a+)+b"}});
  EXPECT_FALSE(runaway.Run(absl::StrCat(std::string(100, 'a'), "cb"), Place::kBeginning).ok());
}

}  // namespace
}  // namespace reprise
