// The longest prefix of a prompt that every group of layers still has in the cache.
//
//   const int num_blocks = MatchPrefix({.index = index, .groups = groups, .block_size = 16,
//                                       .max_blocks = 512, .hashes = hash_prompt,
//                                       .tokens = tokens}, absl::MakeSpan(hits));
//
// A prefix of n blocks is a hit if each group has the blocks that a sequence of that length needs
// (cache/kv_group.h): a full group all of them, found left to right; a window the last few and a
// chunked group those of the begun chunk, found right to left. A hit must be one in all groups: if
// a group has fewer blocks, the others are searched again up to that length, until it does not
// change.
//
// Thread safety: none; one owner. Cost: O(1) a block of the prompt and group, expected, and less
// for a miss: with a full group, no more than kStride blocks beyond the last hit are hashed.

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

// Whether hits may end within a block, whose first tokens are then copied.
enum class PartialHits : int8_t { kNone, kCopied };

struct PrefixSearch {
  const PrefixIndex& index;
  absl::Span<const KvGroupSpec> groups;
  int block_size = 0;
  int max_blocks = 0;       // columns of `hits` a group
  int num_full_blocks = 0;  // of the prompt: those that may be hit
  // The hashes of the prompt's first n blocks.
  absl::FunctionRef<absl::Span<const PrefixHash>(int n)> hashes;
  absl::Span<const int32_t> tokens;  // of the prompt, to be compared where they are stored
};

// Returns the number of blocks of the prefix, and fills hits[group * max_blocks + column] for the
// columns that each group needs of them; other entries are undefined. Ignores cross groups: their
// contents have keys of their own.
// REQUIRES: hits.size() >= groups.size() * max_blocks, num_full_blocks <= max_blocks.
int MatchPrefix(const PrefixSearch& search, absl::Span<BlockId> hits);

}  // namespace reprise

#endif  // REPRISE_CACHE_PREFIX_PREFIX_MATCH_H_
