#include "reprise/engine/scheduling/cache_limits.h"

#include <algorithm>
#include <cstdint>

namespace reprise {

// If only one sequence runs, it can wait until all tokens but its newest are committed
// (Preemptor::MakeRoom), so one token is uncommitted.
CacheLimits::CacheLimits(const RunnerShape& shape, const BlockManager& blocks)
    : blocks_(&blocks),
      lengths_(LengthLimitsOf(blocks, shape.max_seq_len, /*num_uncommitted=*/1,
                              shape.max_encoder_tokens)),
      num_position_dims_(shape.num_position_dims),
      max_position_(shape.max_position) {}

int CacheLimits::MaxTokens(const SequenceState& sequence) const {
  if (num_position_dims_ == 1) return max_tokens();
  // After the prompt a token's position is its index + position_delta.
  return static_cast<int>(std::min<int64_t>(
      max_tokens(), int64_t{max_position_} - sequence.added->content.position_delta));
}

int CacheLimits::FittingChunk(int num_cached, int num_encoder_tokens, int most) const {
  if (!has_windows()) return most;
  const int block_size = blocks_->options().block_size;
  int chunk = most;
  while (chunk > 1 && blocks_->NumBlocksFor(num_cached + chunk, num_cached, num_encoder_tokens) >
                          blocks_->options().num_blocks - 1) {
    // Drops the tokens in the chunk's last block.
    const int begin = (num_cached + chunk - 1) / block_size * block_size;
    chunk = std::max(begin - num_cached, 1);
  }
  return chunk;
}

}  // namespace reprise
