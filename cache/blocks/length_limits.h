// The maximum length of a sequence in a block manager's pool, and whether a sequence releases
// blocks while it grows.
//
//   const LengthLimits limits = LengthLimitsOf(blocks, shape.max_seq_len, /*num_uncommitted=*/1);
//   if (prompt.size() > limits.max_tokens) ...   // does not fit, even as the only sequence
//
// No LibTorch.

#ifndef REPRISE_CACHE_BLOCKS_LENGTH_LIMITS_H_
#define REPRISE_CACHE_BLOCKS_LENGTH_LIMITS_H_

#include "reprise/cache/blocks/block_manager.h"

namespace reprise {

struct LengthLimits {
  // Maximum number of tokens of a sequence whose keys can be cached: max_seq_len, or less if a
  // table row or the whole pool holds fewer.
  int max_tokens = 0;
  // Whether max_tokens is less than max_seq_len, because of the pool or the width of the tables.
  bool is_pool_the_limit = false;
  // Whether a group releases blocks that have left its window.
  bool has_windows = false;
};

// Returns the limits of sequences of at most `max_seq_len` tokens, of which at most
// `num_uncommitted` are uncommitted at any time, with an encoder input of `num_encoder_tokens`.
// Cost: searches for the maximum length (BlockManager::max_tokens()).
LengthLimits LengthLimitsOf(const BlockManager& blocks, int max_seq_len, int num_uncommitted,
                            int num_encoder_tokens = 0);

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_LENGTH_LIMITS_H_
