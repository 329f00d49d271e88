#include "reprise/hf/tokenizer/split_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string_view> Split(std::string_view pattern, std::string_view text) {
  const absl::StatusOr<SplitPattern> compiled = SplitPattern::Compile(pattern);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  const absl::StatusOr<std::vector<TextPart>> parts = compiled->Split(text);
  EXPECT_TRUE(parts.ok()) << parts.status();
  std::vector<std::string_view> texts;
  for (const TextPart& part : *parts) texts.push_back(part.text);
  return texts;
}

TEST(SplitPatternTest, KeepsMatchesAndWhatLiesBetween) {
  EXPECT_THAT(Split("[a-z]+", "ab12cd"), ElementsAre("ab", "12", "cd"));
  EXPECT_THAT(Split("[a-z]+", "12ab34"), ElementsAre("12", "ab", "34"));
  EXPECT_THAT(Split("[a-z]", "ab"), ElementsAre("a", "b"));
  EXPECT_THAT(Split("[a-z]+", "12"), ElementsAre("12"));
  EXPECT_THAT(Split("[a-z]+", ""), IsEmpty());
}

TEST(SplitPatternTest, SaysWhichPartsMatch) {
  EXPECT_THAT(*SplitPattern::Compile("[a-z]+")->Split("12ab34"),
              ElementsAre(TextPart{"12", false}, TextPart{"ab", true}, TextPart{"34", false}));
}

TEST(SplitPatternTest, ALiteralIsNoPattern) {
  const SplitPattern literal = *SplitPattern::Literal("a.*[(\\▁");
  EXPECT_THAT(
      *literal.Split("xa.*[(\\▁a.*"),
      ElementsAre(TextPart{"x", false}, TextPart{"a.*[(\\▁", true}, TextPart{"a.*", false}));
  EXPECT_THAT(std::string(SplitPattern::Literal("").status().message()),
              HasSubstr("may match nothing at all"));
  EXPECT_THAT(std::string(SplitPattern::Literal(std::string(20000, 'a')).status().message()),
              HasSubstr("expected at most 16384 bytes, got 20000"));
}

TEST(SplitPatternTest, SplitsAsLlama3Does) {
  EXPECT_THAT(Split(kLlama3, "Hello, it's 12345  fun!\n\n x"),
              ElementsAre("Hello", ",", " it", "'s", " ", "123", "45", " ", " fun", "!\n\n", " x"));
  EXPECT_THAT(Split(kLlama3, "DON'T WE'LL"), ElementsAre("DON", "'T", " WE", "'LL"));
  EXPECT_THAT(Split(kLlama3, "日本語 naïve"), ElementsAre("日本語", " naïve"));
  EXPECT_THAT(Split(kLlama3, "a \n \n  b "), ElementsAre("a", " \n \n", " ", " b", " "));
}

// The characters of an alphabet that a class matches, by the algebra of sets: an inner class is a
// union, && an intersection that binds less, and ^ at the beginning complements the whole class.
// Hugging Face's library gives the same sets.
TEST(SplitPatternTest, ClassesWithinClassesAreSets) {
  const std::string alphabet = "abcdefgABCDEFG-^&|.: \n";
  const auto without = [&](const std::string& set) {
    std::string rest = alphabet;
    std::erase_if(rest, [&](char c) { return set.find(c) != std::string::npos; });
    return rest;
  };
  const std::pair<const char*, std::string> cases[] = {
      {"[a[bc]d]", "abcd"},
      {"[[a-c][e-g]]", "abcefg"},
      {"[^a[bc]d]", without("abcd")},
      {"[a[^b-d]]", without("bcd")},
      {"[b[^b-d]]", without("cd")},
      {"[^b[^b-d]]", "cd"},
      {"[^[^b-d]]", "bcd"},
      {"[^[^b[^b-d]]]", without("cd")},
      {"[a-e&&c-g]", "cde"},
      {"[a-e&&[^c]]", "abde"},
      {"[^a-e&&c-g]", without("cde")},
      {"[a-e&&b-f&&c-g]", "cde"},
      {"[a[b-e]&&[c-f]g]", "cde"},
      {"[a[b-]c]", "abc-"},
      {"[a[-b]-c]", "abc-"},
      {"[a[b]^]", "ab^"},
      {"[[.a]^]", "a^."},
      {"(?i:[a[bc]])", "abcABC"},
      {"[&[|]]", "|&"},
  };
  for (const auto& [pattern, set] : cases) {
    const absl::StatusOr<SplitPattern> compiled = SplitPattern::Compile(pattern);
    ASSERT_TRUE(compiled.ok()) << pattern << compiled.status();
    std::string matched;
    for (const char& c : alphabet) {
      const std::vector<TextPart> parts = *compiled->Split(std::string_view(&c, 1));
      if (parts.front().is_match) matched += c;
    }
    EXPECT_EQ(matched, without(without(set))) << pattern;
  }
}

// A character that two members of a class contain is not tried twice.
TEST(SplitPatternTest, ClassesWithinClassesTakeLinearTime) {
  EXPECT_THAT(Split("[a[^b]]+c", std::string(5000, 'a')), ElementsAre(std::string(5000, 'a')));
}

TEST(SplitPatternTest, SplitsAsBloomDoes) {
  constexpr char kBloom[] = R"( ?[^(\s|[.,!?…。，、।۔،])]+)";
  EXPECT_THAT(Split(kBloom, "Hello, it's 12 (x|y)  fun!\n你好。z"),
              ElementsAre("Hello", ",", " it's", " 12", " (", "x", "|", "y", ") ", " fun", "!\n",
                          "你好", "。", "z"));
}

TEST(SplitPatternTest, SpaceIsWhatUnicodeSaysItIs) {
  EXPECT_THAT(Split(R"(\s+)", "a\u0085\u00a0\u2003\u3000b"),
              ElementsAre("a", "\u0085\u00a0\u2003\u3000", "b"));
  // A separator once, since Unicode 6.3 a format character.
  EXPECT_THAT(Split(R"(\s+)", "a\u180eb"), ElementsAre("a\u180eb"));
}

TEST(SplitPatternTest, NulIsACharacterLikeAnyOther) {
  EXPECT_THAT(Split("[a-z]+", std::string_view("a\0b", 3)),
              ElementsAre("a", std::string_view("\0", 1), "b"));
}

TEST(SplitPatternTest, RefusesAPatternThatIsNone) {
  const auto error_of = [](std::string_view pattern) {
    return std::string(SplitPattern::Compile(pattern).status().message());
  };
  EXPECT_THAT(error_of("(a"), HasSubstr("split pattern: missing closing parenthesis"));
  EXPECT_THAT(error_of("*"), HasSubstr("split pattern: "));
  EXPECT_THAT(error_of(R"(\p{Nonsense})"), HasSubstr("unknown property"));
  EXPECT_THAT(error_of(R"(\w)"), HasSubstr(R"(\w at byte 0 is not supported)"));
  EXPECT_THAT(error_of(std::string(20000, 'a')),
              HasSubstr("expected at most 16384 bytes, got 20000"));
  EXPECT_THAT(error_of("((a{1,1000}){1,1000}){1,1000}"), HasSubstr("too large"));
  EXPECT_THAT(error_of(absl::StrCat(std::string(5000, '('), "a", std::string(5000, ')'))),
              HasSubstr("too deeply nested"));
}

TEST(SplitPatternTest, RefusesAPatternThatMatchesNothing) {
  for (const char* pattern : {"", "a*", "a?", "(?=a)", "a|", "^", "$"}) {
    EXPECT_THAT(SplitPattern::Compile(pattern).status().message(),
                HasSubstr("may match nothing at all"))
        << pattern;
  }
}

TEST(SplitPatternTest, APatternThatRunsAwayIsStopped) {
  const SplitPattern pattern = *SplitPattern::Compile("(?:a+)+b");
  EXPECT_THAT(pattern.Split(absl::StrCat(std::string(100, 'a'), "cb")).status().message(),
              HasSubstr("cannot split the text at byte 0: match limit exceeded"));
  // More nested than the compiled form has stack for: the interpreter takes over or gives up, as a
  // Status.
  const SplitPattern nested = *SplitPattern::Compile("(?:(?:a|b)(?:c|d)?)+?e|x");
  const std::string text = absl::StrCat(std::string(4'000'000, 'a'), "x");
  const absl::StatusOr<std::vector<TextPart>> parts = nested.Split(text);
  if (!parts.ok()) {
    EXPECT_THAT(parts.status().message(), HasSubstr("cannot split the text"));
  }
}

TEST(SplitPatternTest, LongRunsTakeLinearTime) {
  const SplitPattern pattern = *SplitPattern::Compile(kLlama3);
  for (const char* unit : {"a", " ", "\n", " \n", "!", "1", "'", "é", "\u3000", "a "}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(pattern.Split(text).ok()) << unit;
    // Milliseconds, where quadratic time would be minutes.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << unit;
  }
}

TEST(SplitPatternTest, PiecesTogetherAreTheText) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const SplitPattern pattern = *SplitPattern::Compile(kLlama3);
  const std::vector<char32_t> alphabet = {
      'a', 'S',  '\'', 's',   ' ',    ' ',    '\n',   '\r',   '\t',   '7',     '!',
      0,   0x85, 0xE9, 0x301, 0x180E, 0x200D, 0x2003, 0x4E2D, 0xFFFD, 0x1F642, 0x10FFFF};
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (int i = random() % 20; i > 0; --i) AppendUtf8(alphabet[random() % alphabet.size()], text);
    std::string together;
    const absl::StatusOr<std::vector<TextPart>> parts = pattern.Split(text);
    ASSERT_TRUE(parts.ok()) << parts.status();
    for (const TextPart& part : *parts) {
      ASSERT_FALSE(part.text.empty());
      ASSERT_EQ(FindInvalidUtf8(part.text), std::nullopt);
      together += part.text;
    }
    ASSERT_EQ(together, text);
  }
}

}  // namespace
}  // namespace reprise
