#include "examples/decode/prompt.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

std::string Problem(const Prompt& prompt) { return std::string(CheckPrompt(prompt).message()); }

TEST(PromptTest, TextAndTokensThatAModelCouldTakePass) {
  EXPECT_TRUE(CheckPrompt({.content = "naïve"}).ok());
  EXPECT_TRUE(CheckPrompt({.content = TokenList{0, 7}, .forced_tokens = {1}}).ok());
}

TEST(PromptTest, AnEmptyPromptIsRefusedInEitherForm) {
  EXPECT_EQ(Problem({.content = ""}), "is empty");
  EXPECT_EQ(Problem({.content = TokenList{}}), "is empty");
}

TEST(PromptTest, BrokenUtf8IsRefusedWithItsPlace) {
  EXPECT_EQ(Problem({.content = "ab\xffz"}), "is not UTF-8: byte 2");
  EXPECT_EQ(Problem({.content = "ab\xc3"}), "is not UTF-8: byte 2");  // half a character
}

TEST(PromptTest, NegativeTokensAreRefusedWhereverTheyStand) {
  EXPECT_THAT(Problem({.content = TokenList{1, -1}}), HasSubstr("got -1"));
  EXPECT_THAT(Problem({.content = "a", .forced_tokens = {-5}}), HasSubstr("got -5"));
}

TEST(TokenListTest, ReadsIdsBetweenCommasAndBlanks) {
  const auto tokens = ParseTokenList("1, 2 ,2147483647");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(*tokens, ElementsAre(1, 2, 2147483647));
}

TEST(TokenListTest, RefusesWhatIsNoListOfIds) {
  for (const std::string text :
       {"", ",", "1,", ",1", "1,,2", "one", "1.0", "-1", "2147483648", "1 2", "0x10", "1;2"}) {
    const auto tokens = ParseTokenList(text);
    ASSERT_FALSE(tokens.ok()) << text;
    EXPECT_EQ(tokens.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tokens.status().message()), StartsWith("entry ")) << text;
  }
}

TEST(TokenListTest, ALongEntryIsNotQuotedInFull) {
  const auto tokens = ParseTokenList("5," + std::string(100000, 'x'));
  EXPECT_THAT(std::string(tokens.status().message()), HasSubstr("entry 2"));
  EXPECT_LT(tokens.status().message().size(), 200u);
}

TEST(PromptHeadingTest, TextsAreQuotedOnOneLine) {
  EXPECT_EQ(PromptHeading(3, {.content = "hacker\n"}), R"(prompt 3: "hacker\n")");
  EXPECT_EQ(PromptHeading(1, {.content = "\"\x1b[31m"}), R"(prompt 1: "\"\u001b[31m")");
}

TEST(PromptHeadingTest, LongTextsAreCutBetweenCharacters) {
  // 59 bytes, then a character of two: the cut at 60 would go through it.
  const std::string most(59, 'a');
  EXPECT_EQ(PromptHeading(1, {.content = absl::StrCat(most, "éz")}),
            absl::StrCat("prompt 1: \"", most, "\"..."));
  EXPECT_EQ(PromptHeading(1, {.content = absl::StrCat(most, "a")}),
            absl::StrCat("prompt 1: \"", most, "a\""));
}

TEST(PromptHeadingTest, TokensAreListedAndTheRestLeftOut) {
  EXPECT_EQ(PromptHeading(2, {.content = TokenList{1, 2, 3}}), "prompt 2: 1,2,3");
  EXPECT_EQ(PromptHeading(2, {.content = TokenList(13, 7)}),
            "prompt 2: 7,7,7,7,7,7,7,7,7,7,7,7,...");
}

}  // namespace
}  // namespace reprise
