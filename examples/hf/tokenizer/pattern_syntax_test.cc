#include "reprise/hf/tokenizer/pattern_syntax.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace reprise {
namespace {

using ::testing::HasSubstr;

TEST(PatternSyntaxTest, TranslatesThePatternOfLlama3) {
  const absl::StatusOr<std::string> pattern = ToPcre2Syntax(
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
  ASSERT_TRUE(pattern.ok()) << pattern.status();
  EXPECT_EQ(
      *pattern,
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\p{White_Space}\p{L}\p{N}]+[\r\n]*|)"
      R"(\p{White_Space}*[\r\n]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+)");
}

TEST(PatternSyntaxTest, LeavesWhatBothLibrariesUnderstand) {
  for (const char* pattern :
       {"", "a|b", "(a)(?:b)(?=c)(?!d)(?<=e)(?<!f)(?>g)", "a*?b+?c??d*+e++f?+", "a{2}b{2,}c{2,3}",
        R"([a-z0-9_\-\]é]+)", R"(\p{Lu}\P{Ll}\p{^N}\x{20AC}\.\$\\)", "^.$", "}", "]", "é🙂"}) {
    const absl::StatusOr<std::string> result = ToPcre2Syntax(pattern);
    ASSERT_TRUE(result.ok()) << pattern << result.status();
    EXPECT_EQ(*result, pattern);
  }
  EXPECT_EQ(*ToPcre2Syntax(R"(\d\D\\s)"),
            R"(\p{Nd}\P{Nd}\\s)");  // the last is a backslash and an s
}

TEST(PatternSyntaxTest, WritesOutClassesWithinClasses) {
  const std::pair<std::string, std::string> cases[] = {
      {R"([^(\s|[.,!]é)]+)", R"([^(\p{White_Space}|\.,!é)]+)"},
      {"[a[b[c]d]e]", "[abcde]"},
      {"[[^a]]", "(?>[^a])"},
      {"[a[^b]c]", "(?>[ac]|[^b])"},
      {"[^a[^b]]", "(?:(?!(?>[a]|[^b]))(?s:.))"},
      {"[^a&&[^b]]", "(?:(?!(?=[a])(?>[^b]))(?s:.))"},
      {R"([\p{L}\p{M}&&[^\p{Han}]]*)", R"((?:(?=[\p{L}\p{M}])(?>[^\p{Han}]))*)"},
      {"(?i:[a[b]])(?:[a[^b]])", "(?i:[ab])(?:(?>[a]|[^b]))"},
      {R"((?i:(a)\d\s)\p{Lu})", R"((?i:(a)\p{Nd}\p{White_Space})\p{Lu})"},
      // Hyphens and carets of inner classes stay characters.
      {"[+[*-]/]", R"([+*\-/])"},
      {"[a[-b]-c]", R"([a\-b\-c])"},
      {"[a&&^b]", R"((?:(?=[a])[\^b]))"},
  };
  for (const auto& [pattern, expected] : cases) {
    const absl::StatusOr<std::string> result = ToPcre2Syntax(pattern);
    ASSERT_TRUE(result.ok()) << pattern << result.status();
    EXPECT_EQ(*result, expected) << pattern;
  }
}

TEST(PatternSyntaxTest, RefusesWhatMayMeanSomethingElse) {
  const std::pair<std::string, std::string> cases[] = {
      {R"(a\w)", R"(\w at byte 1 is not supported)"},
      {R"(\b)", R"(\b at byte 0)"},
      {R"(\h)", R"(\h at)"},
      {R"(\v)", R"(\v at)"},
      {R"(\K)", R"(\K at)"},
      {R"(\C)", R"(\C at)"},
      {R"(\Qa\E)", R"(\Q at)"},
      {R"((a)\1)", R"(\1 at byte 3)"},
      {"\\", "an escape at byte 0"},
      {"\\é", "an escape at byte 0"},
      {R"(\pL)", R"(\p without braces)"},
      {R"(\p{L)", R"(\p without braces)"},
      {R"(\x41)", R"(\x without braces)"},
      {"[]a]", "a class that begins with ] at byte 1"},
      {"[^]a]", "a class that begins with ] at byte 2"},
      {"[[:alpha:]]", "a class of POSIX at byte 1"},
      {"[a[]b]", "a class that begins with ] at byte 3"},
      {"[a[b]", "a class without end at byte 5"},
      {"[a-[b]]", "- before [ or && in a class at byte 2"},
      {"[a-&&b]", "- before [ or && in a class at byte 2"},
      {"[&&b]", "&& with nothing before at byte 1"},
      {"[a&&&&b]", "&& with nothing before at byte 4"},
      {"[a&&]", "&& with nothing after at byte 4"},
      {"(?i:(a)[b[^c]])", "a negated class within a class within (?i:) at byte 9"},
      {R"((?i:a|\p{Lu}))", R"(\p within (?i:) at byte 6)"},
      {R"((?i:[\P{Lu}]))", R"(\P within (?i:) at byte 5)"},
      {"(?i:[a-c&&b])", "an intersection of classes within (?i:) at byte 8"},
      {std::string(17, '[') + "a" + std::string(17, ']'),
       "more than 16 classes within each other at byte 16"},
      {"[ab", "a class without end"},
      {R"([\w])", R"(\w at byte 1)"},
      {"(*UTF)a", "(* at byte 0"},
      {"(?m:a)", "a (? of this kind"},
      {"(?i)a", "a (? of this kind"},
      {"(?R)", "a (? of this kind"},
      {"(?<name>a)", "a (? of this kind"},
      {"(?C1)", "a (? of this kind"},
      {"a{,3}", "{ that is no {n}"},
      {"a{x}", "{ that is no {n}"},
      {"a{1,2,3}", "{ that is no {n}"},
      {"a{1", "{ that is no {n}"},
      {"a{}", "{ that is no {n}"},
      {"a{1,3}+", "+ or ? behind {} at byte 6"},
      {"a{2}?", "+ or ? behind {}"},
  };
  for (const auto& [pattern, error] : cases) {
    const absl::StatusOr<std::string> result = ToPcre2Syntax(pattern);
    ASSERT_FALSE(result.ok()) << pattern;
    EXPECT_THAT(result.status().message(), HasSubstr(error)) << pattern;
  }
}

}  // namespace
}  // namespace reprise
