// Maximum lengths of sequences and of prompt chunks in a scheduler's KV cache.
//
//   const CacheLimits limits(shape, blocks);
//   limits.max_tokens();                          // for any sequence
//   limits.FittingChunk(cached, encoder, 512);    // at most 512 tokens of a prompt
//
// Groups with a window release blocks when batches are committed. Prompts therefore get their
// blocks chunk by chunk, and a chunk must not need more blocks than the whole pool has. Without
// windows a prompt gets all its blocks at once, and chunks have no such limit.
//
// Thread safety: constant after construction. Cost: construction searches for the longest sequence
// (BlockManager::max_tokens()).

#ifndef REPRISE_ENGINE_SCHEDULING_CACHE_LIMITS_H_
#define REPRISE_ENGINE_SCHEDULING_CACHE_LIMITS_H_

#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/blocks/length_limits.h"
#include "reprise/engine/scheduling/sequence_state.h"
#include "reprise/runner/runner_shape.h"

namespace reprise {

class CacheLimits {
 public:
  // `blocks` must outlive the limits, and stay at its address.
  CacheLimits(const RunnerShape& shape, const BlockManager& blocks);

  // Maximum number of tokens of a sequence whose keys can be cached: max_seq_len, or less if a
  // sequence that has the whole pool is shorter.
  int max_tokens() const { return lengths_.max_tokens; }
  // The same for one sequence. With positions of several dimensions, its position_delta may reduce
  // the maximum.
  int MaxTokens(const SequenceState& sequence) const;
  // Whether the size of the pool, not max_seq_len, limits max_tokens(). If so, a sequence that
  // would exceed max_tokens() ends with FinishReason::kCacheFull.
  bool is_pool_the_limit() const { return lengths_.is_pool_the_limit; }

  // Whether a group releases blocks that left its window.
  bool has_windows() const { return lengths_.has_windows; }
  // Number of tokens, at most `most`, that the whole pool can hold after `num_cached` committed
  // tokens: at least 1, and `most` without windows. REQUIRES: most >= 1.
  int FittingChunk(int num_cached, int num_encoder_tokens, int most) const;

 private:
  const BlockManager* blocks_;
  LengthLimits lengths_;
  int num_position_dims_;
  int max_position_;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SCHEDULING_CACHE_LIMITS_H_
