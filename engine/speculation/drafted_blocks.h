// Records, for each block of the cache, how many of its leading tokens a drafter with a KV cache
// has read. The drafter's keys of these tokens are valid. A sequence that reuses blocks of another
// sequence derives from it which tokens its drafter has yet to read (SlotJoin::num_undrafted).
//
//   DraftedBlocks drafted({.num_blocks = 1024, .block_size = 16});
//   drafted.Set(blocks, {.first = 40, .end = 48}, /*num_seen=*/45);  // a sequence commits tokens
//   drafted.NumSeen(blocks, 48);           // 45, if all tokens of earlier blocks were read
//
// The last Set() that covers a token of a block determines the block's count. Only committed tokens
// are found in the cache, and every commit calls Set(), so counts need not be cleared when a block
// is reallocated.
//
// Thread safety: not thread-safe; one owner. Cost: O(1) per block.

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

// The tokens [first, end) of a sequence.
struct TokenSpan {
  int first = 0;
  int end = 0;
};

class DraftedBlocks {
 public:
  // Starts with a count of 0 for every block.
  explicit DraftedBlocks(const DraftedBlocksOptions& options)
      : block_size_(options.block_size), num_seen_(options.num_blocks) {}

  // Records that the drafter has read the first `num_seen` tokens of the sequence in `blocks`.
  // Updates the blocks that hold tokens of `range`. REQUIRES: `blocks` cover `range`.
  void Set(absl::Span<const BlockId> blocks, const TokenSpan& range, int num_seen);

  // Returns how many of the first `num_tokens` tokens of the sequence in `blocks` precede the first
  // token that the drafter has not read.
  int NumSeen(absl::Span<const BlockId> blocks, int num_tokens) const;

  // Copies the count of `from` to `to`, after the block was copied.
  void Copy(BlockId from, BlockId to) { num_seen_[to.value()] = num_seen_[from.value()]; }

 private:
  int block_size_;
  std::vector<int32_t> num_seen_;  // by block, in tokens
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SPECULATION_DRAFTED_BLOCKS_H_
