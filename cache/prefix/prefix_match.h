// Finds the longest prefix of a prompt that is cached in every group of layers.
//
//   const int num_blocks = MatchPrefix({.index = index, .groups = groups, .block_size = 16,
//                                       .max_blocks = 512, .hashes = hash_prompt,
//                                       .tokens = tokens}, absl::MakeSpan(hits));
//
// A prefix of n blocks is a hit if each group has the blocks that a sequence of that length needs
// (cache/kv_group.h):
//   - a full group: all blocks, searched from left to right;
//   - a window: the last few blocks, searched from right to left;
//   - a chunked group: the blocks of the current chunk, searched from right to left.
// A hit must be a hit in all groups. If a window or chunked group has a shorter hit, the other such
// groups are searched again up to that length, until the length no longer changes. Full groups have
// every shorter prefix.
//
// Thread safety: not thread-safe; one owner. Cost: O(1) expected per block of the prompt and group,
// and less for a miss: with a full group, at most 64 blocks after the last hit are hashed.

#ifndef REPRISE_CACHE_PREFIX_PREFIX_MATCH_H_
#define REPRISE_CACHE_PREFIX_PREFIX_MATCH_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/kv_group.h"
#include "reprise/cache/prefix/prefix_hash.h"
#include "reprise/cache/prefix/prefix_index.h"

namespace reprise {

// Whether hits may end within a block. The first tokens of that block are then copied.
enum class PartialHits : int8_t { kNone, kCopied };

struct PrefixSearch {
  const PrefixIndex& index;
  absl::Span<const KvGroupSpec> groups;
  int block_size = 0;
  int max_blocks = 0;       // columns of `hits` per group
  int num_full_blocks = 0;  // number of the prompt's full blocks that may be hit
  // Returns the hashes of the prompt's first n blocks.
  absl::FunctionRef<absl::Span<const PrefixHash>(int n)> hashes;
  absl::Span<const int32_t> tokens;  // the prompt's tokens; compared if the index stores tokens
};

// Returns the number of blocks of the prefix. Fills hits[group * max_blocks + column] for the
// columns that each group needs; other entries are undefined. Ignores cross groups, whose content
// has separate keys. REQUIRES: hits.size() >= groups.size() * max_blocks, num_full_blocks <=
// max_blocks.
int MatchPrefix(const PrefixSearch& search, absl::Span<BlockId> hits);

}  // namespace reprise

#endif  // REPRISE_CACHE_PREFIX_PREFIX_MATCH_H_
