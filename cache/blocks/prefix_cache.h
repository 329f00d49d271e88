// A block pool whose blocks can be found by their content. Keeps a BlockPool and a PrefixIndex
// consistent.
//
//   PrefixCache cache = *PrefixCache::Create({.pool = {.num_blocks = 1024}, .block_size = 16});
//   // A prompt: share the hits, allocate the rest, all or nothing.
//   const int num_hits = cache.index().FindPrefix({.hashes = hashes}, absl::MakeSpan(blocks));
//   REPRISE_RETURN_IF_ERROR(cache.CheckAcquirable(hits, fresh.size()));   // changes nothing
//   for (const BlockId hit : hits) cache.Share(hit);
//   CHECK(cache.AllocateReserved(absl::MakeSpan(fresh)).ok());
//   // A block is full and its content is final.
//   cache.Insert(block, {.hash = hash, .parent = parent, .tokens = tokens});
//   // The end of the sequence: children before parents.
//   for (int i = num_blocks - 1; i >= 0; --i) cache.Release(blocks[i]);
//
// After every call:
//   - A block is in the index if and only if it has content. Both used and cached blocks can be
//     found and shared.
//   - At most one unused block has a given key, and only if no used block has it. Other unused
//     blocks with the key are freed immediately.
//   - If every holder of a block also holds its parent (a block with the parent's key), and
//     releases the parent later, no parent is evicted before its cached children. Groups that
//     release parents first, such as sliding windows, also evict parents first, as intended.
//
// Before you write to an inserted block, call Forget(). The block must have no other user then.
//
// Thread safety: not thread-safe; one owner. Cost: as BlockPool and PrefixIndex: O(1) per block,
// and no heap allocation after Create(). 16 + 36 bytes of host memory per block without stored
// tokens.

#ifndef REPRISE_CACHE_BLOCKS_PREFIX_CACHE_H_
#define REPRISE_CACHE_BLOCKS_PREFIX_CACHE_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/blocks/block_pool.h"
#include "reprise/cache/prefix/prefix_index.h"

namespace reprise {

enum class PrefixReuse : int8_t { kOn, kOff };

struct PrefixCacheOptions {
  BlockPoolOptions pool = {};
  // kOff: Insert() has no effect, lookups find no block, and the index takes almost no memory.
  PrefixReuse reuse = PrefixReuse::kOn;
  // The other options are as in PrefixIndexOptions.
  int block_size = 16;
  int num_groups = 1;
  PrefixTokens tokens = PrefixTokens::kNotStored;
  std::optional<PrefixSeed> seed = std::nullopt;
  int64_t num_events = 0;
};

// Invariants, checked by CheckInvariants():
//   1. The invariants of the pool and of the index.
//   2. A block is indexed if and only if it has content.
//   3. If several blocks have the same key, all of them are used.
class PrefixCache {
 public:
  // Errors: InvalidArgument, naming the field.
  static absl::StatusOr<PrefixCache> Create(const PrefixCacheOptions& options);

  PrefixCache(PrefixCache&&) = default;
  PrefixCache& operator=(PrefixCache&&) = default;

  const BlockPool& pool() const { return pool_; }
  const PrefixIndex& index() const { return index_; }
  const PrefixHasher& hasher() const { return index_.hasher(); }
  bool is_on() const { return is_on_; }

  // Like BlockPool::AllocateReserved(). Evicted blocks leave the index. If the reserve must stay
  // free, call CheckAcquirable() first.
  absl::Status AllocateReserved(absl::Span<BlockId> blocks);

  // Returns OK if `num_fresh` blocks can be allocated after all `hits` have been shared, without or
  // with the reserve. A cached block that is shared can no longer be evicted. Null blocks in `hits`
  // are skipped. Errors: as Allocate() and AllocateReserved() of the pool. REQUIRES: every hit that
  // is not a null block is used or has content, like a block that the index has just returned.
  absl::Status CheckAcquirable(absl::Span<const BlockId> hits, int64_t num_fresh) const;
  absl::Status CheckAcquirableReserved(absl::Span<const BlockId> hits, int64_t num_fresh) const;

  // As in BlockPool.
  void Share(BlockId block) { pool_.Share(block); }
  void Release(BlockId block);

  // Inserts `block` into the index under `key`. The block must be full and have the key's content
  // for all later readers; it may still be written by earlier work on the same stream. No effect if
  // the block is already inserted, if reuse is off, or if another block has the key with different
  // stored tokens. REQUIRES: the block is used, and as PrefixIndex::Insert().
  void Insert(BlockId block, const PrefixKey& key);

  // Removes `block` from the index. A cached block becomes free. No effect if the block is not
  // inserted.
  void Forget(BlockId block);

  // Removes all blocks from the index, for example after the weights have changed. Running
  // sequences continue, but their blocks were computed with the old weights: do not insert them.
  void Clear();

  // As in PrefixIndex.
  void CountLookup(int64_t num_tokens_asked, int64_t num_tokens_hit) {
    index_.CountLookup(num_tokens_asked, num_tokens_hit);
  }
  PrefixEvents TakeEvents() { return index_.TakeEvents(); }

  int64_t num_bytes() const { return pool_.num_bytes() + index_.num_bytes(); }

  // Checks the invariants above. CHECK-fails with the number of the violated invariant and the
  // block. For tests and debug builds.
  void CheckInvariants() const;

 private:
  PrefixCache(BlockPool pool, PrefixIndex index, PrefixReuse reuse)
      : pool_(std::move(pool)), index_(std::move(index)), is_on_(reuse == PrefixReuse::kOn) {}

  int64_t CountUnused(absl::Span<const BlockId> hits) const;
  // Removes from the index those of `blocks` that were evicted since the eviction count was
  // `num_evictions_before`.
  void ForgetEvicted(absl::Span<const BlockId> blocks, int64_t num_evictions_before);

  BlockPool pool_;
  PrefixIndex index_;
  bool is_on_ = true;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_PREFIX_CACHE_H_
