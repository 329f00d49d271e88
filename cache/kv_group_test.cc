#include "reprise/cache/kv_group.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace reprise {
namespace {

// Brute force: returns the first position <= num_tokens that the query at num_tokens may attend to.
int64_t FirstVisible(const KvGroupSpec& group, int64_t num_tokens) {
  for (int64_t key = 0; key < num_tokens; ++key) {
    const bool in_window =
        group.retention != KvRetention::kSlidingWindow || num_tokens - key < group.span;
    const bool in_chunk = group.retention != KvRetention::kChunkedLocal ||
                          key / group.span == num_tokens / group.span;
    if (in_window && in_chunk) return key;
  }
  return num_tokens;
}

TEST(KvGroupTest, KeepsExactlyTheKeysOfTheNextQuery) {
  for (const KvRetention retention :
       {KvRetention::kFull, KvRetention::kSlidingWindow, KvRetention::kChunkedLocal}) {
    for (int span = retention == KvRetention::kFull ? 0 : 1; span <= 9; ++span) {
      const KvGroupSpec group = {.retention = retention, .span = span};
      for (int64_t num_tokens = 0; num_tokens <= 40; ++num_tokens) {
        EXPECT_EQ(FirstNeededPosition(group, num_tokens), FirstVisible(group, num_tokens))
            << "span " << span << ", num_tokens " << num_tokens;
      }
    }
  }
}

TEST(KvGroupTest, CrossGroupKeepsTheWholeInputAtEveryLength) {
  EXPECT_EQ(FirstNeededPosition({.retention = KvRetention::kCross}, int64_t{1} << 40), 0);
}

TEST(KvGroupTest, PositionsBeyond32BitsDoNotOverflow) {
  EXPECT_EQ(FirstNeededPosition({.retention = KvRetention::kSlidingWindow, .span = 1 << 30},
                                int64_t{1} << 40),
            (int64_t{1} << 40) + 1 - (1 << 30));
}

}  // namespace
}  // namespace reprise
