// The options, arguments and results of BlockManager (cache/blocks/block_manager.h), as plain
// structs.

#ifndef REPRISE_CACHE_BLOCKS_BLOCK_MANAGER_OPTIONS_H_
#define REPRISE_CACHE_BLOCKS_BLOCK_MANAGER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/base/ids.h"
#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/cache/blocks/sequence_content.h"
#include "reprise/cache/kv_group.h"
#include "reprise/cache/prefix/prefix_hash.h"
#include "reprise/cache/prefix/prefix_index.h"
#include "reprise/cache/prefix/prefix_match.h"

namespace reprise {

struct BlockManagerOptions {
  int num_blocks = 0;   // size of the pool, including the null block
  int block_size = 16;  // tokens per block; at least 1
  int num_slots = 0;    // maximum number of concurrent sequences
  int max_blocks = 0;   // maximum number of blocks per sequence and group: columns of each table
  // Number of blocks that Add() and Fork() leave free for running sequences. Append() and
  // Truncate() may allocate them, and Restore() if the sequence had grown into them.
  int num_reserved_blocks = 0;
  int num_lookahead_tokens = 0;
  // The groups of the model's layers. Empty: one full group.
  std::vector<KvGroupSpec> groups = {};
  // Whether later sequences find the blocks that earlier sequences have computed.
  PrefixReuse prefix_reuse = PrefixReuse::kOff;
  // kStored: hits are verified token by token, and may end within a block (PartialHits).
  PrefixTokens prefix_tokens = PrefixTokens::kNotStored;
  // kCopied: a hit may also reuse the first tokens of one more block, by a copy. Requires
  // prefix_tokens kStored.
  PartialHits partial_hits = PartialHits::kNone;
  std::optional<PrefixSeed> prefix_seed = std::nullopt;  // nullopt: random
  int64_t num_prefix_events = 0;                         // size of the event queue
};

// One entry of AppendBatch(): `num_tokens` more tokens for a sequence.
struct SlotAppend {
  SlotId slot;
  int num_tokens = 1;
};

// The part of a prompt that was found in the cache.
struct PromptHits {
  // Number of leading tokens whose keys are cached. The caller computes the tokens after them. Less
  // than the prompt's length.
  int num_tokens = 0;
  // Whether the encoder's blocks of all cross groups already hold its input.
  bool has_encoder = false;

  friend bool operator==(const PromptHits&, const PromptHits&) = default;
};

// The state of a sequence without its blocks, kept while the sequence is swapped out.
struct SavedSequence {
  int num_tokens = 0;  // committed tokens
  int num_encoder_tokens = 0;
  bool has_encoder = false;             // the encoder's blocks have been written
  std::vector<int> first_columns = {};  // by group
  SavedContent content = {};
  int64_t num_forgets = 0;  // the manager's calls of ForgetPrefixes() before Save()
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_BLOCK_MANAGER_OPTIONS_H_
