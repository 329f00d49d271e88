#include "reprise/hf/tokenizer/text_normalizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

TEST(TextNormalizerTest, WithoutStepsATextStays) {
  EXPECT_EQ(Normalize({}, "a  b"), "a  b");
  EXPECT_EQ(Normalize({}, ""), "");
}

TEST(TextNormalizerTest, PrependsToWhatIsNotEmpty) {
  EXPECT_EQ(Normalize({PrependStep{"▁"}}, "a"), "▁a");
  EXPECT_EQ(Normalize({PrependStep{"▁"}}, "▁a"), "▁▁a");
  EXPECT_EQ(Normalize({PrependStep{"▁"}}, ""), "");
}

TEST(TextNormalizerTest, ReplacesEveryOccurrenceOnce) {
  EXPECT_EQ(Normalize({ReplaceStep{" ", "▁"}}, " a  b "), "▁a▁▁b▁");
  EXPECT_EQ(Normalize({ReplaceStep{"aa", "a"}}, "aaaaa"), "aaa");
  EXPECT_EQ(Normalize({ReplaceStep{"ab", ""}}, "aabb"), "ab");
  EXPECT_EQ(Normalize({ReplaceStep{".", "x"}}, "a.b"), "axb");
}

TEST(TextNormalizerTest, StepsFollowEachOther) {
  EXPECT_EQ(Normalize({PrependStep{" "}, ReplaceStep{" ", "▁"}}, "a b"), "▁a▁b");
  EXPECT_EQ(Normalize({ReplaceStep{" ", "▁"}, PrependStep{" "}}, "a b"), " a▁b");
  EXPECT_EQ(Normalize({ReplaceStep{"x", "\u0301"}, ComposeStep()}, "ex"), "\u00e9");
}

TEST(TextNormalizerTest, LongTextsTakeLinearTime) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string text(10'000'000, ' ');
  EXPECT_EQ(Normalize({PrependStep{"▁"}, ReplaceStep{" ", "▁"}}, text).size(), 3 * text.size() + 3);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

std::string Text(const std::vector<char32_t>& characters) {
  std::string text;
  for (const char32_t character : characters) AppendUtf8(character, text);
  return text;
}

std::string Compose(std::string_view text) { return Normalize({ComposeStep()}, text); }

std::string Composed(const std::vector<char32_t>& characters) { return Compose(Text(characters)); }

TEST(TextNormalizerTest, LettersTakeTheirMarks) {
  EXPECT_EQ(Compose("e\u0301"), "é");
  EXPECT_EQ(Compose("A\u030a\u0301"), "\u01fa");
  EXPECT_EQ(Compose("plain text, é and 日本"), "plain text, é and 日本");
  EXPECT_EQ(Compose(""), "");
  EXPECT_EQ(Compose(std::string_view("\0e\u0301", 4)), std::string_view("\0é", 3));
}

// From the examples of Annex 15.
TEST(TextNormalizerTest, MarksStandInOneOrder) {
  EXPECT_EQ(Composed({0x1E0A, 0x0323}), Text({0x1E0C, 0x0307}));
  EXPECT_EQ(Composed({'D', 0x0307, 0x0323}), Text({0x1E0C, 0x0307}));
  EXPECT_EQ(Composed({0x00E9, 0x0323}), Text({0x1EB9, 0x0301}));
  EXPECT_EQ(Composed({'q', 0x0307, 0x0323}), Text({'q', 0x0323, 0x0307}));
}

TEST(TextNormalizerTest, AMarkBehindOneOfItsClassOrAStarterStays) {
  EXPECT_EQ(Composed({'a', 0x0315, 0x0300}), Text({0x00E0, 0x0315}));
  EXPECT_EQ(Composed({'a', 0x05AE, 0x0300}), Text({0x00E0, 0x05AE}));
  EXPECT_EQ(Composed({'a', 0x0301, 0x0301}), Text({0x00E1, 0x0301}));
  EXPECT_EQ(Composed({'a', '=', 0x0338}), Text({'a', 0x2260}));
  EXPECT_EQ(Composed({0x0B47, 0x0300, 0x0B3E}), Text({0x0B47, 0x0300, 0x0B3E}));
  EXPECT_EQ(Composed({0x0301, 'a'}), Text({0x0301, 'a'}));
}

TEST(TextNormalizerTest, WhatNeverComposesStaysTakenApart) {
  EXPECT_EQ(Composed({0x212B}), Text({0x00C5}));          // Ångström, a letter written twice
  EXPECT_EQ(Composed({0x0958}), Text({0x0915, 0x093C}));  // excluded
  EXPECT_EQ(Composed({0x2ADC}), Text({0x2ADD, 0x0338}));
  EXPECT_EQ(Composed({0x0344}), Text({0x0308, 0x0301}));
  EXPECT_EQ(Composed({0xFB01}), Text({0xFB01}));  // no canonical form of its own
}

TEST(TextNormalizerTest, HangulIsArithmetic) {
  EXPECT_EQ(Composed({0x1112, 0x1161, 0x11AB}), Text({0xD55C}));
  EXPECT_EQ(Composed({0xD558, 0x11AB}), Text({0xD55C}));
  EXPECT_EQ(Composed({0xD55C, 0x11AB}), Text({0xD55C, 0x11AB}));
  EXPECT_EQ(Composed({0xD558, 0x11A7}), Text({0xD558, 0x11A7}));
  EXPECT_EQ(Composed({0x1112, 0x0301, 0x1161}), Text({0x1112, 0x0301, 0x1161}));
  for (char32_t syllable = 0xAC00; syllable <= 0xD7A3; ++syllable) {
    ASSERT_EQ(Composed({syllable}), Text({syllable}));
  }
}

TEST(TextNormalizerTest, OnceIsEnoughAndPiecesDoNotMatter) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (int i = random() % 10; i > 0; --i) {
      switch (random() % 4) {
        case 0:
          AppendUtf8(0xC0 + random() % 0x240, text);  // letters, most of them with marks
          break;
        case 1:
          AppendUtf8(0x1E00 + random() % 0x200, text);  // some with two
          break;
        case 2:
          AppendUtf8(0x300 + random() % 0x70, text);  // marks, some of which are two
          break;
        default:
          AppendUtf8(U"aeA<=\u1100\u1161\u11a8\uac00"[random() % 9], text);
      }
    }
    const std::string once = Compose(text);
    ASSERT_EQ(Compose(once), once);
    ASSERT_FALSE(FindInvalidUtf8(once).has_value());
    ASSERT_EQ(Compose(text + " " + text), once + " " + once);
  }
}

TEST(TextNormalizerTest, ManyMarksTakeNoQuadraticTime) {
  const auto begin = std::chrono::steady_clock::now();
  std::string text = "a";
  for (int i = 0; i < 300'000; ++i) text += i % 2 == 0 ? "\u0301" : "\u0323";
  const std::string composed = Compose(text);
  EXPECT_EQ(composed.size(), text.size());  // a and one mark are three bytes, and so is ạ
  EXPECT_EQ(composed.substr(0, 5), "ạ\u0323");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace reprise
