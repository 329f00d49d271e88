#include "reprise/hf/tokenizer/text_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

// The text that each token makes certain, and last the pending text.
std::vector<std::string> Stream(TextDecoder& decoder, const std::vector<std::string>& tokens) {
  std::vector<std::string> texts;
  for (const std::string& token : tokens) texts.push_back(decoder.Push(token));
  texts.push_back(decoder.Finish());
  return texts;
}

std::vector<std::string> Stream(const std::vector<DecoderStep>& steps,
                                const std::vector<std::string>& tokens) {
  TextDecoder decoder(steps);
  return Stream(decoder, tokens);
}

// Of Llama 2 and Mistral.
const std::vector<DecoderStep>& SentencePiece() {
  static const auto& steps = *new std::vector<DecoderStep>{ReplaceStep{"▁", " "}, ByteTokenStep{},
                                                           StripStep{.character = " ", .count = 1}};
  return steps;
}

// Expected texts, here and below: those of Hugging Face's tokenizers 0.23.
TEST(TextDecoderTest, TextComesWithItsToken) {
  EXPECT_THAT(Stream(SentencePiece(), {"▁Hello", "▁wor", "ld", "▁", "▁x"}),
              ElementsAre("Hello", " wor", "ld", " ", " x", ""));
}

TEST(TextDecoderTest, OneSpaceAtTheBeginningOfTheTextGoes) {
  EXPECT_THAT(Stream(SentencePiece(), {"▁", "▁b"}), ElementsAre("", " b", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"▁▁a"}), ElementsAre(" a", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"", "▁a"}), ElementsAre("", "a", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"a", "▁a"}), ElementsAre("a", " a", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"<0x20>", "<0x20>", "▁b"}), ElementsAre("", " ", " b", ""));
}

TEST(TextDecoderTest, ACharacterOfByteTokensComesWithItsLastByte) {
  EXPECT_THAT(Stream(SentencePiece(), {"<0x0A>", "<0x0A>", "a"}), ElementsAre("\n", "\n", "a", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"<0xC3>", "<0xA9>", "▁x"}), ElementsAre("", "é", " x", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"<0xe6>", "<0x97>", "<0xA5>"}),
              ElementsAre("", "", "日", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "<0x0A>"}),
              ElementsAre("", "", "", "🙂", "\n", ""));
}

TEST(TextDecoderTest, BytesOutsideOfCharactersBecomeOneReplacementEach) {
  EXPECT_THAT(Stream(SentencePiece(), {"<0xC3>", "<0xA9>", "<0xFF>", "<0x0A>", "a"}),
              ElementsAre("", "é", "\uFFFD", "\n", "a", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"<0xC3>", "a", "<0xA9>"}),
              ElementsAre("", "\uFFFDa", "\uFFFD", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"<0xF0>", "<0x9F>", "<0x41>"}),
              ElementsAre("", "", "\uFFFD\uFFFDA", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"<0xE6>", "<0x97>", "<0xC3>", "<0xA9>"}),
              ElementsAre("", "", "\uFFFD\uFFFD", "é", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"<0x0A>", "<0xE6>", "<0x97>"}),
              ElementsAre("\n", "", "", "\uFFFD\uFFFD"));
}

TEST(TextDecoderTest, WholeRunsComeAtTheirEnd) {
  const std::vector<DecoderStep> steps = {ByteTokenStep{.runs = ByteTokenStep::kWhole}};
  EXPECT_THAT(Stream(steps, {"<0xC3>", "<0xA9>", "x"}), ElementsAre("", "", "éx", ""));
  EXPECT_THAT(Stream(steps, {"<0xe6>", "<0x97>", "<0xA5>"}), ElementsAre("", "", "", "日"));
  EXPECT_THAT(Stream(steps, {"<0xC3>", "<0xA9>", "<0xFF>", "a"}),
              ElementsAre("", "", "", "\uFFFD\uFFFD\uFFFDa", ""));
  // A run is one token for later steps.
  EXPECT_THAT(Stream({steps[0], StripStep{" ", 1, StripStep::kEachToken}}, {"<0x20>", "<0x20>"}),
              ElementsAre("", "", " "));
}

TEST(TextDecoderTest, WhatOnlyLooksLikeAByteIsText) {
  for (const char* token : {"<0x4>", "<0x4G>", "<0x041>", "<0x41", "0x41>>>", "<0xé>", "<1x41>"}) {
    EXPECT_THAT(Stream({ByteTokenStep{}}, {token}), ElementsAre(token, ""));
  }
}

TEST(TextDecoderTest, ByteLevelTokensWaitForWholeCharacters) {
  EXPECT_THAT(Stream({ByteLevelStep{}}, {"ĠÃ", "©", "x", "Ã"}),
              ElementsAre(" ", "é", "x", "", "\uFFFD"));
  EXPECT_THAT(Stream({ByteLevelStep{}}, {"<｜x▁｜>", "Ã", "Ġ"}),
              ElementsAre("<｜x▁｜>", "", "\uFFFD ", ""));
}

TEST(TextDecoderTest, MetaspaceDropsTheSpacesOfTheFirstToken) {
  EXPECT_THAT(Stream({MetaspaceStep{.symbol = "▁", .drops_first = true}}, {"▁a▁b", "▁c"}),
              ElementsAre("ab", " c", ""));
  EXPECT_THAT(Stream({MetaspaceStep{.symbol = "▁"}}, {"▁a▁b", "▁c"}),
              ElementsAre(" a b", " c", ""));
}

TEST(TextDecoderTest, EachTokenMayBeStripped) {
  const StripStep strip = {.character = " ", .count = 2, .of = StripStep::kEachToken};
  EXPECT_THAT(Stream({strip}, {"   a", " b", "   "}), ElementsAre(" a", "b", " ", ""));
}

TEST(TextDecoderTest, AfterItsEndItIsAsNew) {
  TextDecoder decoder(SentencePiece());
  EXPECT_THAT(Stream(decoder, {"▁a", "<0xC3>"}), ElementsAre("a", "", "\uFFFD"));
  EXPECT_THAT(Stream(decoder, {"<0xA9>", "▁a"}), ElementsAre("\uFFFD", " a", ""));
  EXPECT_THAT(Stream(decoder, {"▁a"}), ElementsAre("a", ""));
  TextDecoder metaspace({MetaspaceStep{.symbol = "▁", .drops_first = true}});
  EXPECT_THAT(Stream(metaspace, {"▁a"}), ElementsAre("a", ""));
  EXPECT_THAT(Stream(metaspace, {"▁a"}), ElementsAre("a", ""));
}

TEST(TextDecoderTest, WhatIsMovedGoesOn) {
  TextDecoder first(SentencePiece());
  first.Push("▁a");
  first.Push("<0xC3>");
  TextDecoder second = std::move(first);
  EXPECT_THAT(Stream(second, {"<0xA9>", "▁b"}), ElementsAre("é", " b", ""));
}

TEST(TextDecoderTest, ACopyContinuesOnItsOwn) {
  TextDecoder decoder(SentencePiece());
  decoder.Push("▁a");
  decoder.Push("<0xC3>");
  TextDecoder copy = decoder;
  EXPECT_THAT(Stream(copy, {"<0xA9>", "▁b"}), ElementsAre("é", " b", ""));
  EXPECT_THAT(Stream(decoder, {"▁b"}), ElementsAre("\uFFFD b", ""));
}

TEST(TextDecoderTest, NoTextIsEverBroken) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::vector<std::string> tokens = {"▁",      "a",      "▁é",     "<0xC3>", "<0xA9>",
                                           "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "<0x20>"};
  for (int round = 0; round < 5000; ++round) {
    TextDecoder decoder(SentencePiece());
    for (int i = random() % 10; i > 0; --i) {
      ASSERT_FALSE(FindInvalidUtf8(decoder.Push(tokens[random() % tokens.size()])).has_value());
    }
    ASSERT_FALSE(FindInvalidUtf8(decoder.Finish()).has_value());
  }
}

TEST(TextDecoderTest, ARunOfManyBytesTakesLinearTime) {
  TextDecoder decoder(SentencePiece());
  for (int i = 0; i < 500'000; ++i) {
    ASSERT_EQ(decoder.Push("<0xC3>"), "");
    ASSERT_EQ(decoder.Push("<0xA9>"), "é");
  }
  TextDecoder whole({ByteTokenStep{.runs = ByteTokenStep::kWhole}});
  for (int i = 0; i < 1'000'000; ++i) ASSERT_EQ(whole.Push("<0x41>"), "");
  EXPECT_EQ(whole.Finish().size(), 1'000'000u);
}

}  // namespace
}  // namespace reprise
