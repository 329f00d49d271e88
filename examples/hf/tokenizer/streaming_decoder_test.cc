#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "reprise/hf/tokenizer/small_tokenizer.h"
#include "reprise/hf/tokenizer/tokenizer.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

class StreamingDecoderTest : public testing::Test {
 protected:
  const Tokenizer tokenizer_ = *Tokenizer::Create(*ParseTokenizerJson(SmallTokenizerJson()));
  StreamingDecoder decoder_{tokenizer_, SpecialTokenText::kSkip};
};

TEST_F(StreamingDecoderTest, WholeCharactersComeAtOnce) {
  EXPECT_EQ(decoder_.Push(259), "hello");
  EXPECT_EQ(decoder_.Push(260), " w");
  EXPECT_EQ(decoder_.Finish(), "");
}

TEST_F(StreamingDecoderTest, ACharacterWaitsForItsLastByte) {
  EXPECT_EQ(decoder_.Push(0xF0), "");  // 🙂 is F0 9F 99 82
  EXPECT_EQ(decoder_.Push(0x9F), "");
  EXPECT_EQ(decoder_.Push(0x99), "");
  EXPECT_EQ(decoder_.Push(0x82), "🙂");
  EXPECT_EQ(decoder_.Finish(), "");
}

TEST_F(StreamingDecoderTest, AnUnfinishedCharacterEndsAsAReplacement) {
  EXPECT_EQ(decoder_.Push('a'), "a");
  EXPECT_EQ(decoder_.Push(0xE6), "");
  EXPECT_EQ(decoder_.Push(0x97), "");
  EXPECT_EQ(decoder_.Finish(), "\uFFFD");
  EXPECT_EQ(decoder_.Finish(), "");
  EXPECT_EQ(decoder_.Push(0xA5), "\uFFFD");  // as new: not the third byte of 日
}

TEST_F(StreamingDecoderTest, BytesThatCannotBecomeACharacterDoNotWait) {
  EXPECT_EQ(decoder_.Push(0x80), "\uFFFD");
  EXPECT_EQ(decoder_.Push(0xFF), "\uFFFD");
  EXPECT_EQ(decoder_.Push(0xC3), "");
  EXPECT_EQ(decoder_.Push('b'), "\uFFFDb");
}

TEST_F(StreamingDecoderTest, SpecialTokensAreSkippedWithinACharacterToo) {
  EXPECT_EQ(decoder_.Push(0xC3), "");
  EXPECT_EQ(decoder_.Push(261), "");
  EXPECT_EQ(decoder_.Push(0xA9), "é");
  StreamingDecoder keeping(tokenizer_, SpecialTokenText::kKeep);
  EXPECT_EQ(keeping.Push(0xC3), "");
  EXPECT_EQ(keeping.Push(261), "\uFFFD<s>");
}

TEST_F(StreamingDecoderTest, IdsWithoutATokenAddNothing) {
  EXPECT_EQ(decoder_.Push(0xC3), "");
  EXPECT_EQ(decoder_.Push(100000), "");
  EXPECT_EQ(decoder_.Push(-1), "");
  EXPECT_EQ(decoder_.Push(0xA9), "é");
}

TEST_F(StreamingDecoderTest, TextBeginsAfterThePrompt) {
  decoder_.Begin({'a', 261, 0xC3});  // <s> has no text
  EXPECT_EQ(decoder_.Push(0xA9), "é");
  EXPECT_EQ(decoder_.Push(260), " w");
  EXPECT_EQ(decoder_.Finish(), "");
}

TEST_F(StreamingDecoderTest, ReplacementOfTheTokensBeforeTheTextIsNotReturned) {
  decoder_.Begin({'a', 0xC3});
  EXPECT_EQ(decoder_.Push('b'), "b");
  EXPECT_EQ(decoder_.Push(0xC3), "");
  EXPECT_EQ(decoder_.Finish(), "\uFFFD");
  decoder_.Begin({0xF0});
  EXPECT_EQ(decoder_.Push(0x9F), "");
  EXPECT_EQ(decoder_.Finish(), "");
  EXPECT_EQ(decoder_.Push(0xFF), "\uFFFD");  // as new
}

TEST_F(StreamingDecoderTest, AllTogetherIsWhatDecodeGives) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 5000; ++round) {
    std::vector<int32_t> tokens;
    for (int i = random() % 12; i > 0; --i) {
      // Bytes above 0x80 mostly, so that characters form and break.
      tokens.push_back(random() % 4 == 0 ? random() % 270 : 0x80 + random() % 0x80);
    }
    for (const SpecialTokenText special_tokens :
         {SpecialTokenText::kKeep, SpecialTokenText::kSkip}) {
      StreamingDecoder decoder(tokenizer_, special_tokens);
      std::string together;
      for (const int32_t token : tokens) {
        const std::string text = decoder.Push(token);
        ASSERT_EQ(FindInvalidUtf8(text), std::nullopt);
        together += text;
      }
      together += decoder.Finish();
      ASSERT_EQ(together, tokenizer_.Decode(tokens, special_tokens))
          << testing::PrintToString(tokens);
    }
  }
}

}  // namespace
}  // namespace reprise
