#include "reprise/hf/tokenizer/added_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace reprise {

// For messages.
void PrintTo(const TextSegment& segment, std::ostream* out) {
  *out << testing::PrintToString(segment.text) << ":" << testing::PrintToString(segment.token);
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TextSegment Plain(std::string_view text) { return {text, std::nullopt}; }
TextSegment Token(std::string_view text, int32_t id) { return {text, id}; }

std::vector<TextSegment> Split(std::vector<AddedToken> tokens, std::string_view text,
                               SpecialTokens special_tokens = SpecialTokens::kMatch) {
  const absl::StatusOr<AddedTokens> added = AddedTokens::Create(std::move(tokens));
  EXPECT_TRUE(added.ok()) << added.status();
  return added->Split(text, special_tokens);
}

TEST(AddedTokensTest, FindsTokensWhereverTheyStand) {
  const std::vector<AddedToken> tokens = {{.id = 0, .content = "<s>"},
                                          {.id = 1, .content = "</s>"}};
  EXPECT_THAT(Split(tokens, "<s>a</s><s>"),
              ElementsAre(Token("<s>", 0), Plain("a"), Token("</s>", 1), Token("<s>", 0)));
  EXPECT_THAT(Split(tokens, "a<s>b"), ElementsAre(Plain("a"), Token("<s>", 0), Plain("b")));
  EXPECT_THAT(Split(tokens, "<s"), ElementsAre(Plain("<s")));
  EXPECT_THAT(Split(tokens, "<<s>>"), ElementsAre(Plain("<"), Token("<s>", 0), Plain(">")));
  EXPECT_THAT(Split(tokens, ""), IsEmpty());
  EXPECT_THAT(Split({}, "<s>"), ElementsAre(Plain("<s>")));
}

// Hugging Face's library finds the same tokens in these texts.
TEST(AddedTokensTest, SingleWordsAreNotFoundWithinWords) {
  const std::vector<AddedToken> tokens = {{.id = 0, .content = "<t>", .is_single_word = true}};
  for (const char* text : {"a<t>", "<t>a", "_<t>", "é<t>", "<t>é", "1<t>", "<t>\u0301", "<t>\u200d",
                           "Ⓐ<t>", "<t>🅰", "語<t>", "Ⅷ<t>"}) {
    EXPECT_THAT(Split(tokens, text), ElementsAre(Plain(text)));
  }
  EXPECT_THAT(Split(tokens, "<t>"), ElementsAre(Token("<t>", 0)));
  EXPECT_THAT(Split(tokens, "a <t>.b"), ElementsAre(Plain("a "), Token("<t>", 0), Plain(".b")));
  EXPECT_THAT(Split(tokens, "½<t>🙂"), ElementsAre(Plain("½"), Token("<t>", 0), Plain("🙂")));
  EXPECT_THAT(Split(tokens, "<t><t>"), ElementsAre(Token("<t>", 0), Token("<t>", 0)));
  EXPECT_THAT(Split(tokens, "a<t><t>"), ElementsAre(Plain("a<t>"), Token("<t>", 0)));
}

TEST(AddedTokensTest, TheLongestOfThoseThatBeginTogetherIsTaken) {
  const std::vector<AddedToken> tokens = {
      {.id = 1, .content = "ab"}, {.id = 0, .content = "a"}, {.id = 2, .content = "abcd"}};
  EXPECT_THAT(Split(tokens, "abcd"), ElementsAre(Token("abcd", 2)));
  EXPECT_THAT(Split(tokens, "abc"), ElementsAre(Token("ab", 1), Plain("c")));
  EXPECT_THAT(Split(tokens, "aab"), ElementsAre(Token("a", 0), Token("ab", 1)));
}

TEST(AddedTokensTest, TheLeftmostIsTakenBeforeALongerOne) {
  EXPECT_THAT(Split({{.id = 0, .content = "ab"}, {.id = 1, .content = "bcdef"}}, "abcdef"),
              ElementsAre(Token("ab", 0), Plain("cdef")));
}

TEST(AddedTokensTest, WhiteSpaceAroundBelongsToTokensThatStrip) {
  const std::vector<AddedToken> left = {{.id = 0, .content = "<l>", .strips_left = true}};
  EXPECT_THAT(Split(left, "a \n<l> b"), ElementsAre(Plain("a"), Token(" \n<l>", 0), Plain(" b")));
  EXPECT_THAT(Split(left, " <l> <l>"), ElementsAre(Token(" <l>", 0), Token(" <l>", 0)));
  const std::vector<AddedToken> right = {{.id = 1, .content = "<r>", .strips_right = true}};
  EXPECT_THAT(Split(right, "a <r> \u3000\u00a0b"),
              ElementsAre(Plain("a "), Token("<r> \u3000\u00a0", 1), Plain("b")));
  const std::vector<AddedToken> both = {
      {.id = 2, .content = "<b>", .strips_left = true, .strips_right = true}};
  EXPECT_THAT(Split(both, "a <b>  <b> c"),
              ElementsAre(Plain("a"), Token(" <b>  ", 2), Token("<b> ", 2), Plain("c")));
  EXPECT_THAT(Split(both, "é\u2003<b>é"),
              ElementsAre(Plain("é"), Token("\u2003<b>", 2), Plain("é")));
}

TEST(AddedTokensTest, SpecialTokensMayBeForbidden) {
  const std::vector<AddedToken> tokens = {{.id = 0, .content = "<s>", .is_special = true},
                                          {.id = 1, .content = "tool"}};
  EXPECT_THAT(Split(tokens, "a<s>tool", SpecialTokens::kPlainText),
              ElementsAre(Plain("a<s>"), Token("tool", 1)));
  EXPECT_THAT(Split(tokens, "a<s>tool"),
              ElementsAre(Plain("a"), Token("<s>", 0), Token("tool", 1)));
}

TEST(AddedTokensTest, RefusesTokensThatCannotBeToldApart) {
  const auto error_of = [](std::vector<AddedToken> tokens) {
    const absl::Status status = AddedTokens::Create(std::move(tokens)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(error_of({{.id = 0, .content = ""}}), "added tokens: a token has no content");
  EXPECT_EQ(error_of({{.id = 0, .content = "a"}, {.id = 0, .content = "b"}}),
            "added tokens: two tokens have the id 0");
  EXPECT_EQ(error_of({{.id = 0, .content = "a"}, {.id = 0, .content = "a"}}),
            "added tokens: the tokens 0 and 0 have the same content");
}

TEST(AddedTokensTest, WithoutStrippingTheSegmentsTogetherAreTheText) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto random_text = [&](int max_length) {
    std::string text;
    for (int i = random() % max_length; i > 0; --i) text.push_back("ab <"[random() % 4]);
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<AddedToken> tokens;
    std::vector<std::string> contents;
    for (int id = 0; id < 6; ++id) {
      const std::string content = random_text(4);
      if (content.empty() || std::count(contents.begin(), contents.end(), content) > 0) continue;
      contents.push_back(content);
      tokens.push_back({.id = id, .content = content});
    }
    const std::string text = random_text(30);
    std::string together;
    for (const TextSegment& segment : Split(tokens, text)) {
      ASSERT_FALSE(segment.text.empty());
      together += segment.text;
      for (const AddedToken& token : tokens) {
        ASSERT_EQ(segment.token == token.id, segment.token && segment.text == token.content);
        // What is left as text has none of the tokens.
        if (!segment.token) {
          ASSERT_EQ(segment.text.find(token.content), std::string::npos);
        }
      }
    }
    ASSERT_EQ(together, text);
  }
}

}  // namespace
}  // namespace reprise
