// How long a sequence can become in a block manager's pool, and whether it releases blocks while it
// grows.
//
//   const LengthLimits limits = LengthLimitsOf(blocks, shape.max_seq_len, /*num_uncommitted=*/1);
//   if (prompt.size() > limits.max_tokens) ...   // does not fit, even alone
//
// No LibTorch.

#ifndef REPRISE_CACHE_BLOCKS_LENGTH_LIMITS_H_
#define REPRISE_CACHE_BLOCKS_LENGTH_LIMITS_H_

#include "reprise/cache/blocks/block_manager.h"

namespace reprise {

struct LengthLimits {
  // Maximum number of tokens of a sequence whose keys can be cached: max_seq_len, or the tokens of a
  // sequence that has the whole pool.
  int max_tokens = 0;
  // Whether max_tokens is less than max_seq_len.
  bool is_pool_the_limit = false;
  // Whether a group releases blocks that left its window.
  bool has_windows = false;
};

// The limits of sequences of at most `max_seq_len` tokens, of which never more than
// `num_uncommitted` are not committed, with an encoder's input of `num_encoder_tokens`.
// Cost: searches for the longest sequence (BlockManager::max_tokens()).
LengthLimits LengthLimitsOf(const BlockManager& blocks, int max_seq_len, int num_uncommitted,
                            int num_encoder_tokens = 0);

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_LENGTH_LIMITS_H_
