// Which blocks hold which prefixes: finds the blocks whose keys and values need not be computed
// again, because an earlier sequence began with the same tokens.
//
//   PrefixIndex index = *PrefixIndex::Create({.num_blocks = 1024, .block_size = 16});
//   std::vector<PrefixHash> hashes = ...;             // index.hasher().Chain(...)
//   std::vector<BlockId> hits(hashes.size());
//   const int num_hits = index.FindPrefix({.hashes = hashes}, absl::MakeSpan(hits));
//
// A block is found by its key: its group (cache/kv_group.h) and the hash of the whole prefix that
// ends with it (cache/prefix/prefix_hash.h). Only full blocks are indexed. The index knows nothing
// of references and does not decide what is evicted: cache/blocks/prefix_cache.h joins it with a
// block pool.
//
// Several blocks of one key. Sequences that run side by side may compute the same block twice. The
// first stays the one that is found; when it is removed, the next one takes its place.
//
// Tokens. With PrefixTokens::kStored the index keeps the tokens of each block. Then a lookup that
// gives its tokens compares them with those of every block it finds, so that no collision of hashes
// can ever serve other tokens (extra keys are told apart by the hash alone), and FindPartial() can
// look into the blocks that follow a prefix.
//
// Thread safety: none; one owner. Cost: O(1) expected a block, no allocation after Create(), which
// takes 36 bytes a block, with tokens 20 + 4 * block_size more, and 96 an event.

#ifndef REPRISE_CACHE_PREFIX_PREFIX_INDEX_H_
#define REPRISE_CACHE_PREFIX_PREFIX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/prefix/prefix_children.h"
#include "reprise/cache/prefix/prefix_events.h"
#include "reprise/cache/prefix/prefix_hash.h"

namespace reprise {

enum class PrefixTokens : int8_t { kNotStored, kStored };

struct PrefixIndexOptions {
  int num_blocks = 0;   // of the pool, the null block included; at least 2
  int block_size = 16;  // tokens a block; at least 1
  int num_groups = 1;   // 1 to 65,535
  PrefixTokens tokens = PrefixTokens::kNotStored;
  // Nothing: PrefixSeed::Random().
  std::optional<PrefixSeed> seed = std::nullopt;
  int64_t num_events = 0;  // the size of the event queue; 0: no events
};

// The key that finds a block.
struct PrefixKey {
  int group = 0;
  PrefixHash hash = {};                   // hasher().Extend(parent, tokens, extra)
  PrefixHash parent = {};                 // the hash of the block before, or the root
  absl::Span<const int32_t> tokens = {};  // [block_size]; needed only where they are stored
  absl::Span<const ExtraKey> extra = {};  // of this block
};

// Blocks that are asked for.
struct PrefixQuery {
  int group = 0;
  absl::Span<const PrefixHash> hashes =
      {};  // of consecutive blocks, from any block of the sequence
  // The tokens of those blocks, [hashes.size() * block_size or more], to be compared where they are
  // stored; or empty: the hashes are trusted.
  absl::Span<const int32_t> tokens = {};
};

// A block whose first `num_tokens` tokens, at least one, are those asked for.
struct PartialHit {
  BlockId block;
  int num_tokens = 0;

  friend bool operator==(const PartialHit&, const PartialHit&) = default;
};

enum class PrefixInsertion : int8_t {
  kFirst,      // the block is found by its key from now on
  kDuplicate,  // another block of this key is; this one takes its turn when those before are gone
  // The key is that of another block with other tokens, which stored tokens tell: not indexed.
  kCollision,
};

struct PrefixStatistics {
  // By CountLookup().
  int64_t num_lookups = 0;
  int64_t num_tokens_asked = 0;
  int64_t num_tokens_hit = 0;
  int64_t num_stored = 0;      // Insert() of a new key
  int64_t num_duplicates = 0;  // Insert() of a key that was there
  int64_t num_removed = 0;     // keys that are gone, by Remove() or Clear()
  int64_t num_collisions = 0;  // hashes found whose tokens were different
};

// Invariants, checked by CheckInvariants():
//   1. Every indexed block is in exactly one list of blocks with its key, and the first of that
//      list is in the bucket of the key, once.
//   2. No two lists have the same key.
//   3. With tokens: the first of each list, and no other block, is among the children.
//   4. num_indexed() and num_keys() are the numbers of those blocks and lists.
class PrefixIndex {
 public:
  // Errors: InvalidArgument, naming the field.
  static absl::StatusOr<PrefixIndex> Create(const PrefixIndexOptions& options);

  PrefixIndex(PrefixIndex&&) = default;
  PrefixIndex& operator=(PrefixIndex&&) = default;

  const PrefixHasher& hasher() const { return hasher_; }

  // The longest prefix of the query that is here: fills blocks[0, result) and leaves the rest as it
  // is. REQUIRES: blocks.size() >= query.hashes.size().
  int FindPrefix(const PrefixQuery& query, absl::Span<BlockId> blocks) const;

  // One block.
  std::optional<BlockId> Find(int group, PrefixHash hash) const;

  // Of the blocks that follow `parent` in this group with these extra keys: the one with the most
  // first tokens in common with `tokens` (those after the prefix, any number), if it is one at
  // least. Copying the block's first num_tokens slots saves computing them. Looks at the 64
  // children added last at most. Nothing without stored tokens.
  std::optional<PartialHit> FindPartial(int group, PrefixHash parent,
                                        absl::Span<const int32_t> tokens,
                                        absl::Span<const ExtraKey> extra = {}) const;

  // Adds `block`. REQUIRES: it is of the pool, not the null block, not indexed; the key's group
  // exists; with stored tokens, key.tokens.size() == block_size.
  PrefixInsertion Insert(BlockId block, const PrefixKey& key);

  // Takes `block` out. No effect if it is not indexed. REQUIRES: it is of the pool.
  void Remove(BlockId block);

  // Takes out everything: for weights that have changed.
  void Clear();

  bool contains(BlockId block) const;

  // REQUIRES, these three: contains(block).
  PrefixHash hash(BlockId block) const;
  int group(BlockId block) const;
  // Whether other blocks have the same key.
  bool has_duplicates(BlockId block) const;

  // The block that is found in place of `block` while that is indexed; itself if it was the first.
  // REQUIRES: contains(block).
  BlockId first_of_key(BlockId block) const;

  int num_indexed() const { return num_indexed_; }  // blocks
  int num_keys() const { return num_keys_; }

  // Counts a lookup whose result was used: lookups themselves are const, and a plan may make
  // several for one request.
  void CountLookup(int64_t num_tokens_asked, int64_t num_tokens_hit);

  PrefixStatistics statistics() const;

  // What happened since the last call; see cache/prefix/prefix_events.h. Valid until the next call.
  PrefixEvents TakeEvents() { return events_.Take(); }

  // A kStored event, without its parent, for every key that is here now. Allocates.
  std::vector<PrefixEvent> Snapshot() const;

  const PrefixIndexOptions& options() const { return options_; }

  // Host memory that the index holds.
  int64_t num_bytes() const;

  // Proves the invariants above; CHECK-fails with the number of the broken one and the block.
  // O(num_blocks * block_size), allocates. For tests and debug builds.
  void CheckInvariants() const;

 private:
  // An indexed block. 32 bytes, two to a cache line.
  struct alignas(32) Entry {
    PrefixHash hash;
    int32_t next_in_bucket = 0;  // of the first of a key; 0 ends the list
    // Blocks of the same key, a ring from the first on in order of age. 0 if not indexed.
    int32_t next_same = 0;
    int32_t previous_same = 0;
    uint16_t group = 0;
    bool is_first = false;
  };

  explicit PrefixIndex(const PrefixIndexOptions& options);

  bool has_tokens() const { return options_.tokens == PrefixTokens::kStored; }
  void CheckOfThePool(BlockId block) const;
  void CheckQuery(const PrefixQuery& query, absl::Span<const BlockId> blocks) const;
  const Entry& IndexedEntry(BlockId block) const;
  absl::Span<const int32_t> TokensOf(int32_t block) const;

  size_t BucketOf(int group, PrefixHash hash) const;
  // The first block of the key, 0 if there is none.
  int32_t Lookup(int group, PrefixHash hash) const;
  // The i-th block of the query, its tokens compared.
  int32_t LookupBlock(const PrefixQuery& query, int64_t i) const;

  PrefixIndexOptions options_;
  PrefixHasher hasher_;
  std::vector<Entry> entries_;    // by block
  std::vector<int32_t> buckets_;  // the first entry of each, 0 if none
  std::vector<int32_t> tokens_;   // [num_blocks, block_size], empty if not stored
  PrefixChildren children_;       // empty if tokens are not stored
  PrefixEventQueue events_;
  PrefixStatistics statistics_;         // but num_collisions
  mutable int64_t num_collisions_ = 0;  // counted by lookups too
  int num_indexed_ = 0;
  int num_keys_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_PREFIX_PREFIX_INDEX_H_
