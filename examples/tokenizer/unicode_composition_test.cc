#include "examples/tokenizer/unicode_composition.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "examples/tokenizer/composition_tables.h"
#include "examples/tokenizer/utf8.h"

namespace reprise {
namespace {

std::string Text(const std::vector<char32_t>& characters) {
  std::string text;
  for (const char32_t character : characters) AppendUtf8(character, text);
  return text;
}

std::string Composed(const std::vector<char32_t>& characters) {
  return ComposeCanonically(Text(characters));
}

TEST(UnicodeCompositionTest, LettersTakeTheirMarks) {
  EXPECT_EQ(ComposeCanonically("e\u0301"), "é");
  EXPECT_EQ(ComposeCanonically("A\u030a\u0301"), "\u01fa");
  EXPECT_EQ(ComposeCanonically("plain text, é and 日本"), "plain text, é and 日本");
  EXPECT_EQ(ComposeCanonically(""), "");
  EXPECT_EQ(ComposeCanonically(std::string_view("\0e\u0301", 4)), std::string_view("\0é", 3));
}

// From the examples of Annex 15.
TEST(UnicodeCompositionTest, MarksStandInOneOrder) {
  EXPECT_EQ(Composed({0x1E0A, 0x0323}), Text({0x1E0C, 0x0307}));
  EXPECT_EQ(Composed({'D', 0x0307, 0x0323}), Text({0x1E0C, 0x0307}));
  EXPECT_EQ(Composed({0x00E9, 0x0323}), Text({0x1EB9, 0x0301}));
  EXPECT_EQ(Composed({'q', 0x0307, 0x0323}), Text({'q', 0x0323, 0x0307}));
}

TEST(UnicodeCompositionTest, AMarkBehindOneOfItsClassOrAStarterStays) {
  EXPECT_EQ(Composed({'a', 0x0315, 0x0300}), Text({0x00E0, 0x0315}));
  EXPECT_EQ(Composed({'a', 0x05AE, 0x0300}), Text({0x00E0, 0x05AE}));
  EXPECT_EQ(Composed({'a', 0x0301, 0x0301}), Text({0x00E1, 0x0301}));
  EXPECT_EQ(Composed({'a', '=', 0x0338}), Text({'a', 0x2260}));
  EXPECT_EQ(Composed({0x0B47, 0x0300, 0x0B3E}), Text({0x0B47, 0x0300, 0x0B3E}));
  EXPECT_EQ(Composed({0x0301, 'a'}), Text({0x0301, 'a'}));
}

TEST(UnicodeCompositionTest, WhatNeverComposesStaysTakenApart) {
  EXPECT_EQ(Composed({0x212B}), Text({0x00C5}));          // Ångström, a letter written twice
  EXPECT_EQ(Composed({0x0958}), Text({0x0915, 0x093C}));  // excluded
  EXPECT_EQ(Composed({0x2ADC}), Text({0x2ADD, 0x0338}));
  EXPECT_EQ(Composed({0x0344}), Text({0x0308, 0x0301}));
  EXPECT_EQ(Composed({0xFB01}), Text({0xFB01}));  // no canonical form of its own
}

TEST(UnicodeCompositionTest, HangulIsArithmetic) {
  EXPECT_EQ(Composed({0x1112, 0x1161, 0x11AB}), Text({0xD55C}));
  EXPECT_EQ(Composed({0xD558, 0x11AB}), Text({0xD55C}));
  EXPECT_EQ(Composed({0xD55C, 0x11AB}), Text({0xD55C, 0x11AB}));
  EXPECT_EQ(Composed({0xD558, 0x11A7}), Text({0xD558, 0x11A7}));
  EXPECT_EQ(Composed({0x1112, 0x0301, 0x1161}), Text({0x1112, 0x0301, 0x1161}));
  for (char32_t syllable = 0xAC00; syllable <= 0xD7A3; ++syllable) {
    ASSERT_EQ(Composed({syllable}), Text({syllable}));
  }
}

TEST(UnicodeCompositionTest, EveryPairOfTheTableComposes) {
  for (int i = 0; i < kNumPairs; ++i) {
    const Decomposition& pair = kPairs[i];
    ASSERT_EQ(Composed({pair.first, pair.second}), Text({pair.character})) << i;
    ASSERT_EQ(Composed({pair.character}), Text({pair.character})) << i;
    ASSERT_TRUE(i == 0 || kPairs[i - 1].character < pair.character) << i;
  }
  for (int i = 0; i < kNumOneWay; ++i) {
    ASSERT_NE(Composed({kOneWay[i].character}), Text({kOneWay[i].character})) << i;
  }
}

TEST(UnicodeCompositionTest, OnceIsEnoughAndPiecesDoNotMatter) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (int i = random() % 10; i > 0; --i) {
      switch (random() % 4) {
        case 0:
          AppendUtf8(kPairs[random() % kNumPairs].character, text);
          break;
        case 1:
          AppendUtf8(kOneWay[random() % kNumOneWay].character, text);
          break;
        case 2:
          AppendUtf8(kCombining[random() % kNumCombining].first, text);
          break;
        default:
          AppendUtf8(U"aeA<=\u1100\u1161\u11a8\uac00"[random() % 9], text);
      }
    }
    const std::string once = ComposeCanonically(text);
    ASSERT_EQ(ComposeCanonically(once), once);
    ASSERT_FALSE(FindInvalidUtf8(once).has_value());
    ASSERT_EQ(ComposeCanonically(text + " " + text), once + " " + once);
  }
}

TEST(UnicodeCompositionTest, ManyMarksTakeNoQuadraticTime) {
  const auto begin = std::chrono::steady_clock::now();
  std::string text = "a";
  for (int i = 0; i < 300'000; ++i) text += i % 2 == 0 ? "\u0301" : "\u0323";
  const std::string composed = ComposeCanonically(text);
  EXPECT_EQ(composed.size(), text.size());  // a and one mark are three bytes, and so is ạ
  EXPECT_EQ(composed.substr(0, 5), "ạ\u0323");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace reprise
