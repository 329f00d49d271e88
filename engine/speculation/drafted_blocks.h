// Of each block of the cache, how many of its leading tokens a drafter with keys of its own has seen:
// those whose keys are there in the drafter's layers, too. Sequences that find a block which others
// computed know by it what their drafter has still to see (SlotJoin::num_undrafted).
//
//   DraftedBlocks drafted({.num_blocks = 1024, .block_size = 16});
//   drafted.Set(blocks, {.first = 40, .end = 48}, /*num_seen=*/45);  // a sequence commits tokens
//   drafted.NumSeen(blocks, 48);                                     // 45
//
// A block's number is that of the last Set() of tokens in it. What is found in the cache was committed,
// so blocks need not be cleared when they are handed out again.
//
// Thread safety: none; one owner. Cost: O(1) a block.

#ifndef REPRISE_ENGINE_SPECULATION_DRAFTED_BLOCKS_H_
#define REPRISE_ENGINE_SPECULATION_DRAFTED_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "reprise/base/ids.h"

namespace reprise {

struct DraftedBlocksOptions {
  int num_blocks = 0;
  int block_size = 0;  // tokens
};

// Tokens of a sequence, by index.
struct TokenSpan {
  int first = 0;
  int end = 0;
};

class DraftedBlocks {
 public:
  // Nothing has been seen.
  explicit DraftedBlocks(const DraftedBlocksOptions& options)
      : block_size_(options.block_size), num_seen_(options.num_blocks) {}

  // Of a sequence in `blocks` the first `num_seen` tokens were seen: notes it of the blocks that hold
  // tokens of `range`. REQUIRES: the blocks hold them.
  void Set(absl::Span<const BlockId> blocks, const TokenSpan& range, int num_seen);

  // Of the first `num_tokens` tokens of a sequence in `blocks`, those before the first that was not seen.
  int NumSeen(absl::Span<const BlockId> blocks, int num_tokens) const;

  // A copy of `from` has been made.
  void Copy(BlockId from, BlockId to) { num_seen_[to.value()] = num_seen_[from.value()]; }

 private:
  int block_size_;
  std::vector<int32_t> num_seen_;  // by block
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SPECULATION_DRAFTED_BLOCKS_H_
