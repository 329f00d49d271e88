// The sizes, limits and capabilities of a runner, for a scheduler, a block manager or a caller's
// loop. A plain value that does not depend on LibTorch.
//
//   const RunnerShape& shape = runner->shape();
//   REPRISE_ASSIGN_OR_RETURN(BlockManager blocks, BlockManager::Create(BlockOptionsOf(shape)));
//
// A runner sets its shape when it is created, and never changes it.

#ifndef REPRISE_RUNNER_RUNNER_SHAPE_H_
#define REPRISE_RUNNER_RUNNER_SHAPE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "reprise/cache/blocks/block_manager_options.h"
#include "reprise/cache/kv_group.h"
#include "reprise/runner/slots/embedding_rows.h"
#include "reprise/runner/speculation/draft_capability.h"

namespace reprise {

struct RunnerShape {
  int max_num_seqs = 0;         // number of slots; maximum number of rows per step
  int max_num_tokens = 0;       // maximum number of tokens per step; at least max_num_seqs
  int max_seq_len = 0;          // maximum number of tokens per sequence whose keys are cached
  int max_steps_in_flight = 1;  // maximum number of steps launched before the oldest is awaited
  int vocab_size = 0;           // token ids are in [0, vocab_size)

  // KV cache.
  int num_blocks = 0;  // number of blocks, the null block included
  int block_size = 16;
  // One per block table; default: one group of full attention.
  std::vector<KvGroupSpec> groups = {{}};
  int num_swap_blocks = 0;  // number of host blocks, host block 0 included; 0: no swaps
  // Bytes of a block in all layers; a swap or a copy moves this amount.
  int64_t bytes_per_block = 0;

  // Encoder. 0: the model has no encoder.
  int max_encoder_tokens = 0;       // maximum number of encoder tokens per sequence
  int max_encoder_step_tokens = 0;  // maximum number of encoder tokens per step

  // Input.
  int num_position_dims = 1;
  // Exclusive bound of all positions; only used with several position dimensions.
  int max_position = 0;
  EmbeddingFormat embeddings = {};  // format of rows that may replace token embeddings

  // Logits.
  int mask_words = 0;  // words of a mask of allowed tokens, MaskWords(vocab_size); 0: no masks
  // Maximum number of tokens per step whose logits are computed, not counting the last token of
  // each row. Rows with RowLogits::kAll and rows with drafts share this limit. 0: none.
  int max_earlier_logits = 0;

  DraftCapability drafts = {};

  // Returns the number of columns of each group's block table.
  int max_blocks() const {
    return (std::max(max_seq_len, max_encoder_tokens) - 1) / block_size + 1;
  }
  // Returns the maximum number of block-table updates per batch: every entry of every table.
  int64_t max_updates() const {
    return static_cast<int64_t>(groups.size()) * max_num_seqs * max_blocks();
  }
};

// Returns the options of a block manager for the runner's sequences: sizes and groups. All other
// options have their defaults.
inline BlockManagerOptions BlockOptionsOf(const RunnerShape& shape) {
  return {.num_blocks = shape.num_blocks,
          .block_size = shape.block_size,
          .num_slots = shape.max_num_seqs,
          .max_blocks = shape.max_blocks(),
          .groups = shape.groups};
}

// Returns the options for sequences that share prefixes. The manager stores tokens if
// `partial_hits` requires them.
inline BlockManagerOptions BlockOptionsOf(const RunnerShape& shape, PrefixReuse prefix_reuse,
                                          PartialHits partial_hits) {
  BlockManagerOptions options = BlockOptionsOf(shape);
  options.prefix_reuse = prefix_reuse;
  options.partial_hits = partial_hits;
  if (partial_hits == PartialHits::kCopied) options.prefix_tokens = PrefixTokens::kStored;
  return options;
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_RUNNER_SHAPE_H_
