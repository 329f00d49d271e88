// What a BlockManager (cache/blocks/block_manager.h) is made of, takes and gives, as plain structs.

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
  int num_blocks = 0;   // in the pool, the null block included
  int block_size = 16;  // tokens a block; at least 1
  int num_slots = 0;    // sequences at a time
  int max_blocks = 0;   // of a sequence: columns of each table
  // Blocks that only Append() may take: Add() and Fork() leave them for sequences that run already.
  int num_reserved_blocks = 0;
  int num_lookahead_tokens = 0;
  // The groups of the model's layers; none: one full group.
  std::vector<KvGroupSpec> groups = {};
  // Whether what sequences have computed is found by later ones.
  PrefixReuse prefix_reuse = PrefixReuse::kOff;
  // kStored: hits are proved token by token, and may end within a block (PartialHits).
  PrefixTokens prefix_tokens = PrefixTokens::kNotStored;
  // kCopied: the begun block of a prefix is copied too, as far as the tokens are the same. Needs
  // prefix_tokens.
  PartialHits partial_hits = PartialHits::kNone;
  std::optional<PrefixSeed> prefix_seed = std::nullopt;  // nothing: random
  int64_t num_prefix_events = 0;                         // size of the event queue
};

// One sequence's part of a batch: `num_tokens` more tokens.
struct SlotAppend {
  SlotId slot;
  int num_tokens = 1;
};

// What a prompt found in the cache.
struct PromptHits {
  // First tokens whose keys are there: the caller computes from here on. Fewer than the prompt's.
  int num_tokens = 0;
  // The encoder's blocks, of all cross groups, hold its input already.
  bool has_encoder = false;

  friend bool operator==(const PromptHits&, const PromptHits&) = default;
};

// The state of a sequence without its blocks, to be kept while it has none.
struct SavedSequence {
  int num_tokens = 0;  // committed ones
  int num_encoder_tokens = 0;
  bool has_encoder = false;             // its blocks have been written
  std::vector<int> first_columns = {};  // by group
  SavedContent content = {};
  int64_t num_forgets = 0;  // of the manager: calls of ForgetPrefixes() until then
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_BLOCK_MANAGER_OPTIONS_H_
