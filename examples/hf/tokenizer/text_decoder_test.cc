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

std::string Joined(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined += text;
  return joined;
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
  EXPECT_THAT(Stream(SentencePiece(), {"<0x20>", "<0x20>", "▁b"}), ElementsAre("", "", "  b", ""));
}

TEST(TextDecoderTest, BytesWaitForTheEndOfTheirRun) {
  EXPECT_THAT(Stream(SentencePiece(), {"<0xC3>", "<0xA9>", "▁x"}), ElementsAre("", "", "é x", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"<0xe6>", "<0x97>", "<0xA5>"}),
              ElementsAre("", "", "", "日"));
}

TEST(TextDecoderTest, AByteThatIsNoTextSpoilsItsRun) {
  EXPECT_THAT(Stream(SentencePiece(), {"<0xC3>", "<0xA9>", "<0xFF>", "a"}),
              ElementsAre("", "", "", "\uFFFD\uFFFD\uFFFDa", ""));
  EXPECT_THAT(Stream(SentencePiece(), {"<0xC3>", "a", "<0xA9>"}),
              ElementsAre("", "\uFFFDa", "", "\uFFFD"));
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
  EXPECT_THAT(Stream(decoder, {"<0xA9>", "▁a"}), ElementsAre("", "\uFFFD a", ""));
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
  EXPECT_THAT(Stream(second, {"<0xA9>", "▁b"}), ElementsAre("", "é b", ""));
}

TEST(TextDecoderTest, PendingReturnsWhatFinishWouldWithoutAnUnfinishedCharacter) {
  TextDecoder decoder(SentencePiece());
  EXPECT_EQ(decoder.Pending(), "");
  decoder.Push("▁a");
  EXPECT_EQ(decoder.Pending(), "");
  decoder.Push("<0x0A>");
  EXPECT_EQ(decoder.Pending(), "\n");
  decoder.Push("<0xC3>");
  EXPECT_EQ(decoder.Pending(), "\n");
  decoder.Push("<0xA9>");
  EXPECT_EQ(decoder.Pending(), "\né");
  EXPECT_EQ(decoder.Pending(), "\né");  // changes nothing
  decoder.Push("<0xFF>");
  EXPECT_EQ(decoder.Pending(), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(decoder.Push("b"), "\uFFFD\uFFFD\uFFFD\uFFFDb");
  EXPECT_EQ(decoder.Pending(), "");
}

TEST(TextDecoderTest, PendingTextPassesThroughLaterSteps) {
  TextDecoder decoder(SentencePiece());
  decoder.Push("<0x20>");
  decoder.Push("<0x20>");
  EXPECT_EQ(decoder.Pending(), " ");
  EXPECT_EQ(decoder.Finish(), " ");
}

TEST(TextDecoderTest, ACopyContinuesOnItsOwn) {
  TextDecoder decoder(SentencePiece());
  decoder.Push("▁a");
  decoder.Push("<0xC3>");
  TextDecoder copy = decoder;
  EXPECT_THAT(Stream(copy, {"<0xA9>", "▁b"}), ElementsAre("", "é b", ""));
  EXPECT_THAT(Stream(decoder, {"▁b"}), ElementsAre("\uFFFD b", ""));
}

TEST(TextDecoderTest, FirstSpaceAfterKnownTextIsKept) {
  TextDecoder decoder(SentencePiece());
  decoder.Push("▁dog");
  decoder.MarkKnown();
  EXPECT_THAT(Stream(decoder, {"▁and"}), ElementsAre(" and", ""));
  TextDecoder metaspace({MetaspaceStep{.symbol = "▁", .drops_first = true}});
  metaspace.Push("▁dog");
  metaspace.MarkKnown();
  EXPECT_THAT(Stream(metaspace, {"▁and"}), ElementsAre(" and", ""));
}

TEST(TextDecoderTest, KnownTextDividesACharacter) {
  for (const auto& [steps, tokens] :
       {std::pair(SentencePiece(), std::vector<std::string>{"<0xC3>", "<0xA9>", "▁x"}),
        std::pair(std::vector<DecoderStep>{ByteLevelStep{}},
                  std::vector<std::string>{"Ã", "©", "Ġx"})}) {
    TextDecoder whole(steps);
    whole.Push(tokens[0]);
    whole.MarkKnown();
    EXPECT_EQ(Joined(Stream(whole, {tokens[1], tokens[2]})), "é x");
    // U+FFFD belongs to the known text.
    TextDecoder broken(steps);
    broken.Push(tokens[0]);
    broken.MarkKnown();
    EXPECT_EQ(broken.Pending(), "");
    EXPECT_EQ(Joined(Stream(broken, {tokens[2]})), " x");
    TextDecoder ended(steps);
    ended.Push(tokens[0]);
    ended.MarkKnown();
    EXPECT_EQ(ended.Finish(), "");
    EXPECT_EQ(Joined(Stream(ended, {tokens[0]})), "\uFFFD");  // as new
  }
}

// Definition: the text of all tokens without the text of the known tokens.
TEST(TextDecoderTest, TextAfterKnownTextIsTheRestOfAllText) {
  const std::vector<std::pair<std::vector<DecoderStep>, std::vector<std::string>>> kinds = {
      {SentencePiece(),
       {"▁", "a", "▁é", "<0xC3>", "<0xA9>", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "<0x0A>"}},
      {{ByteLevelStep{}}, {"Ġ", "a", "Ã", "©", "ð", "Ł", "Ļ", "Ĥ"}},
      {{MetaspaceStep{.symbol = "▁", .drops_first = true}}, {"▁", "a", "▁b", "c▁"}}};
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  int num_compared = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto& [steps, pieces] = kinds[round % kinds.size()];
    std::vector<std::string> known;
    std::vector<std::string> rest;
    for (int i = random() % 6; i > 0; --i) known.push_back(pieces[random() % pieces.size()]);
    for (int i = random() % 6; i > 0; --i) rest.push_back(pieces[random() % pieces.size()]);
    std::vector<std::string> all = known;
    all.insert(all.end(), rest.begin(), rest.end());
    TextDecoder decoder(steps);
    const std::string whole = Joined(Stream(decoder, all));
    const std::string begin = Joined(Stream(decoder, known));
    for (const std::string& token : known) decoder.Push(token);
    decoder.MarkKnown();
    const std::string text = Joined(Stream(decoder, rest));
    if (whole.substr(0, begin.size()) != begin) continue;  // the rest has changed the known text
    ++num_compared;
    ASSERT_EQ(text, whole.substr(begin.size()))
        << testing::PrintToString(known) << " and " << testing::PrintToString(rest);
  }
  EXPECT_GT(num_compared, 10000);
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
    ASSERT_EQ(decoder.Push("<0xA9>"), "");
  }
  EXPECT_EQ(decoder.Finish().size(), 1'000'000u);
}

}  // namespace
}  // namespace reprise
