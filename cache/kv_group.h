// Layers of a model that retain the same keys form a group: they share one block table and one rule
// for the blocks that a sequence still needs.
//
// All groups of a model use one block pool and the same block_size. Each group has its own block
// table, with one row per slot. A column is always position / block_size, in every group. When a
// sequence no longer needs a block, a null block replaces it in its column, so no other column
// moves.
//
//   retention    a sequence of n tokens, the next token at position n, keeps the blocks of
//   full         all positions 0 .. n - 1
//   window W     positions n + 1 - W .. n - 1: the W - 1 keys that the next query attends to in
//                addition to its own key
//   chunked C    positions floor(n / C) * C .. n - 1: the chunk that contains the next query
//   cross        all positions of the encoder's input, written once; independent of n
//
//   // Gemma 2: full attention and a window of 4,096 tokens, in alternate layers.
//   const KvGroupSpec groups[] = {{}, {.retention = KvRetention::kSlidingWindow, .span = 4096}};
//
// No LibTorch. Thread safety: plain data.

#ifndef REPRISE_CACHE_KV_GROUP_H_
#define REPRISE_CACHE_KV_GROUP_H_

#include <cstdint>

namespace reprise {

// Maximum number of groups of a model. Row builders take the groups' rules by value.
inline constexpr int kMaxKvGroups = 8;

enum class KvRetention : int8_t { kFull, kSlidingWindow, kChunkedLocal, kCross };

struct KvGroupSpec {
  KvRetention retention = KvRetention::kFull;
  // Number of tokens of the window, including the query's token (window_left + 1), or of a chunk;
  // at least 1. 0 for full and cross groups.
  int span = 0;

  friend bool operator==(const KvGroupSpec&, const KvGroupSpec&) = default;
};

// Returns the first position that a sequence of `num_tokens` still needs in the group.
constexpr int64_t FirstNeededPosition(const KvGroupSpec& group, int64_t num_tokens) {
  switch (group.retention) {
    case KvRetention::kSlidingWindow:
      return num_tokens + 1 > group.span ? num_tokens + 1 - group.span : 0;
    case KvRetention::kChunkedLocal:
      return num_tokens / group.span * group.span;
    case KvRetention::kFull:
    case KvRetention::kCross:
      break;
  }
  return 0;
}

}  // namespace reprise

#endif  // REPRISE_CACHE_KV_GROUP_H_
