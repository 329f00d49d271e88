// The blocks of a sequence that a group of layers needs: the arithmetic of cache/kv_group.h in
// blocks.
//
//   // Window of 4 tokens, blocks of 2: after 9 tokens, the next query attends to positions 6 to 8.
//   FirstNeededBlock({.retention = KvRetention::kSlidingWindow, .span = 4}, 9, 2);  // 3
//
// A cached prefix of n tokens can be reused if each group still has its blocks from
// FirstNeededBlock(n) to the end of the prefix: all blocks in a full group, the last few blocks in
// a window, the blocks of the current chunk in a chunked group.
//
// No LibTorch. Thread safety: pure functions. Cost: O(1); CheckGroups() is O(groups).

#ifndef REPRISE_CACHE_GROUP_RETENTION_H_
#define REPRISE_CACHE_GROUP_RETENTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/cache/kv_group.h"

namespace reprise {

// Whether the group holds the sequence's tokens. A cross group holds the encoder's tokens instead.
constexpr bool HoldsOwnTokens(const KvGroupSpec& group) {
  return group.retention != KvRetention::kCross;
}

// Whether the group releases blocks of a sequence while the sequence grows.
constexpr bool LosesBlocks(const KvGroupSpec& group) {
  return group.retention == KvRetention::kSlidingWindow ||
         group.retention == KvRetention::kChunkedLocal;
}

// Returns the first block that a sequence of `num_tokens` still needs in the group.
constexpr int FirstNeededBlock(const KvGroupSpec& group, int num_tokens, int block_size) {
  return static_cast<int>(FirstNeededPosition(group, num_tokens) / block_size);
}

// Returns the smallest num_tokens for which FirstNeededBlock() >= first_block. REQUIRES:
// first_block is 0 or LosesBlocks(group).
constexpr int ShortestWithFirstBlock(const KvGroupSpec& group, int first_block, int block_size) {
  if (first_block == 0) return 0;
  const int64_t position = int64_t{first_block} * block_size;
  if (group.retention == KvRetention::kSlidingWindow) {
    return static_cast<int>(position + group.span - 1);
  }
  return static_cast<int>((position + group.span - 1) / group.span * group.span);
}

// Checks the groups of a model. Errors: InvalidArgument, naming the group and the field, for an
// unknown retention, a span below 1 of a window or chunk, or a nonzero span of a full or cross
// group. InvalidArgument if no group holds a sequence's tokens.
absl::Status CheckGroups(absl::Span<const KvGroupSpec> groups);

}  // namespace reprise

#endif  // REPRISE_CACHE_GROUP_RETENTION_H_
