// Which blocks of a sequence a group of layers needs: the arithmetic of cache/kv_group.h in blocks.
//
//   // A window of 4 tokens in blocks of 2: with 9 tokens the next query sees positions 6, 7, 8.
//   FirstNeededBlock({.retention = KvRetention::kSlidingWindow, .span = 4}, 9, 2);  // 3
//
// A prefix of n tokens can be taken over from the cache if each group still has its blocks from
// FirstNeededBlock(n) on: all of them in a full group, the last few of a window, those of the
// begun chunk.
//
// No LibTorch. Thread safety: pure functions. Cost: O(1), and O(groups) where there are many.

#ifndef REPRISE_CACHE_GROUP_RETENTION_H_
#define REPRISE_CACHE_GROUP_RETENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/cache/kv_group.h"

namespace reprise {

// Whether the group holds the sequence's own tokens; a cross group holds the encoder's instead.
constexpr bool HoldsOwnTokens(const KvGroupSpec& group) {
  return group.retention != KvRetention::kCross;
}

// Whether blocks of a sequence go out of use while it grows.
constexpr bool LosesBlocks(const KvGroupSpec& group) {
  return group.retention == KvRetention::kSlidingWindow ||
         group.retention == KvRetention::kChunkedLocal;
}

// The first block that a sequence of `num_tokens` still needs in the group.
constexpr int FirstNeededBlock(const KvGroupSpec& group, int num_tokens, int block_size) {
  return static_cast<int>(FirstNeededPosition(group, num_tokens) / block_size);
}

// The fewest tokens that a sequence can have whose first needed block is `first_block` or a later
// one. Shorter, it would need blocks before.
constexpr int ShortestWithFirstBlock(const KvGroupSpec& group, int first_block, int block_size) {
  if (first_block == 0) return 0;
  const int64_t position = int64_t{first_block} * block_size;
  if (group.retention == KvRetention::kSlidingWindow) {
    return static_cast<int>(position + group.span - 1);
  }
  return static_cast<int>((position + group.span - 1) / group.span * group.span);
}

// Errors: InvalidArgument naming the group and the field: a retention other than the four, a span
// below 1 for a retention with a span, a span for one without; no group that holds a sequence's own
// tokens.
absl::Status CheckGroups(absl::Span<const KvGroupSpec> groups);

}  // namespace reprise

#endif  // REPRISE_CACHE_GROUP_RETENTION_H_
