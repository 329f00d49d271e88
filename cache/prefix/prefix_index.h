// Maps prefixes to the blocks that hold them. Finds the blocks whose keys and values need not be
// recomputed, because an earlier sequence began with the same tokens.
//
//   PrefixIndex index = *PrefixIndex::Create({.num_blocks = 1024, .block_size = 16});
//   std::vector<PrefixHash> hashes = ...;             // index.hasher().Chain(...)
//   std::vector<BlockId> hits(hashes.size());
//   const int num_hits = index.FindPrefix({.hashes = hashes}, absl::MakeSpan(hits));
//
// A block is found by its key: its group (cache/kv_group.h) and the hash of the whole prefix up to
// its end (cache/prefix/prefix_hash.h). Only full blocks are indexed. The index does not track
// references and does not decide evictions: cache/blocks/prefix_cache.h combines it with a block
// pool.
//
// Duplicates. Sequences that run concurrently may compute the same block twice. Lookups return the
// first one; when it is removed, they return the next oldest.
//
// Tokens. With PrefixTokens::kStored, the index stores the tokens of each block. A lookup with
// tokens then compares them with the stored tokens of every block it finds, so a hash collision can
// never return blocks of other tokens. (Extra keys are distinguished only by the hash.)
// FindPartial() also uses the stored tokens, to search the blocks that follow a prefix.
//
// Thread safety: not thread-safe; one owner. Cost: O(1) expected per block. No allocation after
// Create(), which allocates 36 bytes per block, 20 + 4 * block_size more per block with stored
// tokens, and 96 bytes per event.

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
  int num_blocks = 0;   // size of the pool, including the null block; at least 2
  int block_size = 16;  // tokens per block; at least 1
  int num_groups = 1;   // 1 to 65,535
  PrefixTokens tokens = PrefixTokens::kNotStored;
  // nullopt: PrefixSeed::Random().
  std::optional<PrefixSeed> seed = std::nullopt;
  int64_t num_events = 0;  // size of the event queue; 0: no events
};

// The key of a block.
struct PrefixKey {
  int group = 0;
  PrefixHash hash = {};                   // hasher().Extend(parent, tokens, extra)
  PrefixHash parent = {};                 // the hash of the previous block, or the root
  absl::Span<const int32_t> tokens = {};  // [block_size]; required only if tokens are stored
  absl::Span<const ExtraKey> extra = {};  // the block's extra keys
};

// A lookup of consecutive blocks.
struct PrefixQuery {
  int group = 0;
  absl::Span<const PrefixHash> hashes =
      {};  // hashes of consecutive blocks, starting at any block of the sequence
  // The tokens of the blocks, at least [hashes.size() * block_size], which are compared if the
  // index stores tokens. Empty: only the hashes are compared.
  absl::Span<const int32_t> tokens = {};
};

// A block whose first `num_tokens` >= 1 tokens match the lookup.
struct PartialHit {
  BlockId block;
  int num_tokens = 0;

  friend bool operator==(const PartialHit&, const PartialHit&) = default;
};

enum class PrefixInsertion : int8_t {
  kFirst,      // lookups of the key now return this block
  kDuplicate,  // lookups return another block with this key; this one after older ones are removed
  // Another block has the same key but different tokens (detected only with stored tokens). Not
  // indexed.
  kCollision,
};

struct PrefixStatistics {
  // The first three are counted by CountLookup().
  int64_t num_lookups = 0;
  int64_t num_tokens_asked = 0;
  int64_t num_tokens_hit = 0;
  int64_t num_stored = 0;      // Insert() of a new key
  int64_t num_duplicates = 0;  // Insert() of an existing key
  int64_t num_removed = 0;     // keys removed by Remove() or Clear()
  int64_t num_collisions = 0;  // blocks found by hash whose tokens differ
};

// Invariants, checked by CheckInvariants():
//   1. Every indexed block is in exactly one list of blocks with its key, and the first block of
//      the list is in the key's bucket exactly once.
//   2. No two lists have the same key.
//   3. With stored tokens: the first block of each list, and no other block, is in children_.
//   4. num_indexed() is the number of indexed blocks, and num_keys() the number of lists.
class PrefixIndex {
 public:
  // Errors: InvalidArgument, naming the field.
  static absl::StatusOr<PrefixIndex> Create(const PrefixIndexOptions& options);

  PrefixIndex(PrefixIndex&&) = default;
  PrefixIndex& operator=(PrefixIndex&&) = default;

  const PrefixHasher& hasher() const { return hasher_; }

  // Finds the longest indexed prefix of the query. Fills blocks[0, result) and leaves the rest
  // unchanged. REQUIRES: blocks.size() >= query.hashes.size().
  int FindPrefix(const PrefixQuery& query, absl::Span<BlockId> blocks) const;

  // Finds one block by group and hash.
  std::optional<BlockId> Find(int group, PrefixHash hash) const;

  // Searches the blocks of this group that follow `parent` and have these extra keys. Returns the
  // one that shares the longest prefix with `tokens` (the tokens after `parent`, any number), or
  // nullopt if no block shares a token. Copying the block's first num_tokens slots saves their
  // computation. Considers at most the 64 children added last. Returns nullopt without stored
  // tokens.
  std::optional<PartialHit> FindPartial(int group, PrefixHash parent,
                                        absl::Span<const int32_t> tokens,
                                        absl::Span<const ExtraKey> extra = {}) const;

  // Adds `block`. REQUIRES: `block` is in the pool, not the null block, and not indexed; the key's
  // group exists; with stored tokens, key.tokens.size() == block_size.
  PrefixInsertion Insert(BlockId block, const PrefixKey& key);

  // Removes `block`. No effect if it is not indexed. REQUIRES: `block` is in the pool.
  void Remove(BlockId block);

  // Removes all blocks, for example after the weights have changed.
  void Clear();

  bool contains(BlockId block) const;

  // REQUIRES, for the next three accessors: contains(block).
  PrefixHash hash(BlockId block) const;
  int group(BlockId block) const;
  // Whether other blocks have the same key.
  bool has_duplicates(BlockId block) const;

  // Returns the block that lookups return for the key of `block`; `block` itself if it is the
  // first. REQUIRES: contains(block).
  BlockId first_of_key(BlockId block) const;

  int num_indexed() const { return num_indexed_; }  // indexed blocks
  int num_keys() const { return num_keys_; }

  // Counts a lookup whose result was used. Lookups do not count themselves: they are const, and a
  // plan may make several for one request.
  void CountLookup(int64_t num_tokens_asked, int64_t num_tokens_hit);

  PrefixStatistics statistics() const;

  // Returns the events since the last call (cache/prefix/prefix_events.h). Valid until the next
  // call.
  PrefixEvents TakeEvents() { return events_.Take(); }

  // Returns a kStored event, without a parent, for every key in the index. Allocates.
  std::vector<PrefixEvent> Snapshot() const;

  const PrefixIndexOptions& options() const { return options_; }

  // Host memory of the index.
  int64_t num_bytes() const;

  // Checks the invariants above. CHECK-fails with the number of the violated invariant and the
  // block. O(num_blocks * block_size), allocates. For tests and debug builds.
  void CheckInvariants() const;

 private:
  // An indexed block. 32 bytes, two to a cache line.
  struct alignas(32) Entry {
    PrefixHash hash;
    int32_t next_in_bucket = 0;  // set for the first block of a key; 0 terminates the list
    // The ring of blocks with the same key, from the first block in order of age. 0 if not indexed.
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
  // Returns the first block of the key, or 0.
  int32_t Lookup(int group, PrefixHash hash) const;
  // Returns the i-th block of the query, or 0. Compares tokens if they are stored and given.
  int32_t LookupBlock(const PrefixQuery& query, int64_t i) const;

  PrefixIndexOptions options_;
  PrefixHasher hasher_;
  std::vector<Entry> entries_;    // indexed by block
  std::vector<int32_t> buckets_;  // the first entry of each bucket, or 0
  std::vector<int32_t> tokens_;   // [num_blocks, block_size], empty if not stored
  PrefixChildren children_;       // empty if tokens are not stored
  PrefixEventQueue events_;
  PrefixStatistics statistics_;         // except num_collisions
  mutable int64_t num_collisions_ = 0;  // mutable because lookups count them, too
  int num_indexed_ = 0;
  int num_keys_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_PREFIX_PREFIX_INDEX_H_
