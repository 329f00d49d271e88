// Layers of a model that keep their keys alike share a group: one block table, one rule for which
// blocks a sequence still needs.
//
// All groups of a model draw on one block pool and have the same block_size. Each has a block table
// of its own with a row a slot. A column is always position / block_size, in every group: a block
// that a sequence needs no more leaves a null block in its column, so nothing shifts.
//
//   retention    a sequence of n tokens, the next one at position n, keeps the blocks of
//   full         all positions 0 .. n - 1
//   window W     positions n + 1 - W .. n - 1: the W - 1 that the next query sees besides itself
//   chunked C    positions floor(n / C) * C .. n - 1: those of the chunk the next query is in
//   cross        all positions of the encoder's input, written once, whatever n is
//
//   // Gemma 2: alternate layers of a window of 4,096 tokens and of full attention.
//   const KvGroupSpec groups[] = {{}, {.retention = KvRetention::kSlidingWindow, .span = 4096}};
//
// No LibTorch. A value; thread safety: const data.

#ifndef REPRISE_CACHE_KV_GROUP_H_
#define REPRISE_CACHE_KV_GROUP_H_

#include <cstdint>

namespace reprise {

// Groups that a model may have: builders of rows take their rules by value.
inline constexpr int kMaxKvGroups = 8;

enum class KvRetention : int8_t { kFull, kSlidingWindow, kChunkedLocal, kCross };

struct KvGroupSpec {
  KvRetention retention = KvRetention::kFull;
  // Tokens of the window, the query's own included (window_left + 1), or of a chunk; at least 1. 0
  // for the other two.
  int span = 0;

  friend bool operator==(const KvGroupSpec&, const KvGroupSpec&) = default;
};

// The first position that a sequence of `num_tokens` still needs in the group.
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
