#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reprise/hf/tokenizer/split_pattern.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The pieces of `text` split at each "-".
std::vector<std::string> SplitAtDashes(std::string_view text, SplitBehavior behavior) {
  const std::vector<TextPart> parts = *SplitPattern::Literal("-")->Split(text);
  std::vector<std::string> pieces;
  for (const std::string_view piece : Pieces(parts, behavior)) pieces.emplace_back(piece);
  return pieces;
}

// Expected values: pre_tokenizers.Split of Hugging Face's tokenizers 0.23.
TEST(SplitBehaviorTest, WhatBecomesOfMatches) {
  constexpr char kText[] = "the-final--countdown-";
  EXPECT_THAT(SplitAtDashes(kText, SplitBehavior::kIsolated),
              ElementsAre("the", "-", "final", "-", "-", "countdown", "-"));
  EXPECT_THAT(SplitAtDashes(kText, SplitBehavior::kRemoved),
              ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(SplitAtDashes(kText, SplitBehavior::kMergedWithPrevious),
              ElementsAre("the-", "final-", "-", "countdown-"));
  EXPECT_THAT(SplitAtDashes(kText, SplitBehavior::kMergedWithNext),
              ElementsAre("the", "-final", "-", "-countdown", "-"));
  EXPECT_THAT(SplitAtDashes(kText, SplitBehavior::kContiguous),
              ElementsAre("the", "-", "final", "--", "countdown", "-"));
}

TEST(SplitBehaviorTest, MatchesAtTheEnds) {
  EXPECT_THAT(SplitAtDashes("--a", SplitBehavior::kMergedWithPrevious), ElementsAre("-", "-", "a"));
  EXPECT_THAT(SplitAtDashes("-a", SplitBehavior::kMergedWithNext), ElementsAre("-a"));
  EXPECT_THAT(SplitAtDashes("a--", SplitBehavior::kMergedWithNext), ElementsAre("a", "-", "-"));
  EXPECT_THAT(SplitAtDashes("--", SplitBehavior::kRemoved), IsEmpty());
  EXPECT_THAT(SplitAtDashes("--", SplitBehavior::kContiguous), ElementsAre("--"));
  for (const SplitBehavior behavior :
       {SplitBehavior::kIsolated, SplitBehavior::kRemoved, SplitBehavior::kMergedWithPrevious,
        SplitBehavior::kMergedWithNext, SplitBehavior::kContiguous}) {
    EXPECT_THAT(SplitAtDashes("", behavior), IsEmpty());
    EXPECT_THAT(SplitAtDashes("ab", behavior), ElementsAre("ab"));
  }
}

}  // namespace
}  // namespace reprise
