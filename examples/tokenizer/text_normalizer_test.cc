#include "examples/tokenizer/text_normalizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

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

TEST(TextNormalizerTest, ComposesCharacters) {
  EXPECT_EQ(Normalize({ComposeStep()}, "e\u0301"), "\u00e9");
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

}  // namespace
}  // namespace reprise
