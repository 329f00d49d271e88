#include "examples/llama/prompt_heading.h"

#include <string>

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(PromptHeadingTest, TextsAreQuotedOnOneLine) {
  EXPECT_EQ(PromptHeading(3, {.content = "hacker\n"}), R"(prompt 3: "hacker\n")");
  EXPECT_EQ(PromptHeading(1, {.content = "\"\x1b[31m"}), R"(prompt 1: "\"\u001b[31m")");
}

TEST(PromptHeadingTest, LongTextsAreCutBetweenCharacters) {
  // 59 bytes, then a character of two: the cut at 60 would go through it.
  EXPECT_EQ(PromptHeading(1, {.content = std::string(59, 'a') + "éz"}),
            "prompt 1: \"" + std::string(59, 'a') + "\"...");
  EXPECT_EQ(PromptHeading(1, {.content = std::string(60, 'a')}),
            "prompt 1: \"" + std::string(60, 'a') + "\"");
}

TEST(PromptHeadingTest, TokensAreListedAndTheRestLeftOut) {
  EXPECT_EQ(PromptHeading(2, {.content = TokenList{1, 2, 3}}), "prompt 2: 1,2,3");
  EXPECT_EQ(PromptHeading(2, {.content = TokenList(13, 7)}),
            "prompt 2: 7,7,7,7,7,7,7,7,7,7,7,7,...");
}

}  // namespace
}  // namespace reprise
