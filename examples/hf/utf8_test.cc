#include "reprise/hf/utf8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace reprise {
namespace {

using ::testing::Optional;

TEST(Utf8Test, EveryCharacterThatIsWrittenIsReadBack) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;  // surrogates are not characters
    std::string text;
    AppendUtf8(c, text);
    const Utf8Unit unit = FirstUtf8Unit(text + "x");
    ASSERT_EQ(unit.kind, Utf8Kind::kCharacter) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ(unit.code_point, c);
    ASSERT_EQ(unit.length, static_cast<int>(text.size()));
  }
}

TEST(Utf8Test, RefusesTheFormsThatUnicodeForbids) {
  for (const char* text : {
           "\x80",              // a continuation alone
           "\xC0\x80",          // NUL in two bytes
           "\xC1\xBF",          // ASCII in two bytes
           "\xE0\x9F\xBF",      // U+07FF in three
           "\xF0\x8F\xBF\xBF",  // U+FFFF in four
           "\xED\xA0\x80",      // a surrogate
           "\xF4\x90\x80\x80",  // U+110000
           "\xF8\x88\x80\x80",  // five bytes
           "\xFE",
           "\xFF",
       }) {
    EXPECT_EQ(FirstUtf8Unit(text).kind, Utf8Kind::kInvalid) << testing::PrintToString(text);
    EXPECT_THAT(FindInvalidUtf8(std::string("ok é") + text), Optional(5));
  }
}

TEST(Utf8Test, FindsNothingInWellFormedText) {
  EXPECT_EQ(FindInvalidUtf8(""), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8(std::string_view("a\0b", 3)), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("naïve 日本語 🙂"), std::nullopt);
}

TEST(Utf8Test, FindsAnIncompleteCharacterAtTheEnd) {
  EXPECT_THAT(FindInvalidUtf8("ab\xE6\x97"), Optional(2));
  EXPECT_THAT(FindInvalidUtf8("\xF0"), Optional(0));
}

TEST(Utf8Test, ReplacesEachMaximalSubpartOnce) {
  // The example of the Unicode standard, table 3-8.
  EXPECT_EQ(ReplaceInvalidUtf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  // A surrogate is three stray bytes, since ED is never followed by A0.
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("ok\xF0\x9F\x99"), "ok\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8(""), "");
}

TEST(Utf8Test, TheSettledPrefixEndsBeforeAnIncompleteCharacter) {
  EXPECT_EQ(SettledUtf8Prefix(""), 0);
  EXPECT_EQ(SettledUtf8Prefix("abc"), 3);
  EXPECT_EQ(SettledUtf8Prefix("a\xF0"), 1);
  EXPECT_EQ(SettledUtf8Prefix("a\xF0\x9F"), 1);
  EXPECT_EQ(SettledUtf8Prefix("a\xF0\x9F\x99"), 1);
  EXPECT_EQ(SettledUtf8Prefix("a\xF0\x9F\x99\x82"), 5);
  EXPECT_EQ(SettledUtf8Prefix("a\x80\x80"), 3);  // stray: nothing can mend them
  EXPECT_EQ(SettledUtf8Prefix("\xE0\x80"), 2);   // E0 is never followed by 80
  EXPECT_EQ(SettledUtf8Prefix("é\xC3"), 2);
}

TEST(Utf8Test, WhatIsSettledNeverChanges) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  // Bytes at which the rules change, so that near misses are common.
  const std::vector<uint8_t> bytes = {0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2,
                                      0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (int i = random() % 8; i > 0; --i) text.push_back(bytes[random() % bytes.size()]);
    const int64_t settled = SettledUtf8Prefix(text);
    ASSERT_LE(text.size() - settled, 3u);
    ASSERT_EQ(ReplaceInvalidUtf8(text), ReplaceInvalidUtf8(text.substr(0, settled)) +
                                            ReplaceInvalidUtf8(text.substr(settled)))
        << testing::PrintToString(text);
    ASSERT_EQ(FindInvalidUtf8(ReplaceInvalidUtf8(text)), std::nullopt);
  }
}

}  // namespace
}  // namespace reprise
