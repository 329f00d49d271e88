// A block pool whose blocks are found again by their content: keeps a BlockPool and a PrefixIndex
// consistent.
//
//   PrefixCache cache = *PrefixCache::Create({.pool = {.num_blocks = 1024}, .block_size = 16});
//   // A prompt: share the hits, allocate the rest, all or nothing.
//   const int num_hits = cache.index().FindPrefix({.hashes = hashes}, absl::MakeSpan(blocks));
//   REPRISE_RETURN_IF_ERROR(cache.CheckAcquirable(hits, fresh.size()));   // changes nothing
//   for (const BlockId hit : hits) cache.Share(hit);
//   CHECK(cache.AllocateReserved(absl::MakeSpan(fresh)).ok());
//   // A block is full and its content certain.
//   cache.Insert(block, {.hash = hash, .parent = parent, .tokens = tokens});
//   // The end of the sequence: children before parents.
//   for (int i = num_blocks - 1; i >= 0; --i) cache.Release(blocks[i]);
//
// After every call:
//   - A block is findable exactly while it has its content. Blocks in use are found and shared as
//     well as cached ones.
//   - At most one unused block has a given key, and none while a block in use has it: of several
//     copies, unused ones are freed at once.
//   - If every holder of a block also holds its parent (a block with the parent's key), and releases
//     the parent later, no parent is evicted before its cached children. Groups that release parents
//     earlier, as sliding windows do, evict the parents first, as they should.
//
// Before writing into a block that was inserted, Forget() it; this requires that it has no other
// user.
//
// Thread safety: none; one owner. Cost: that of both parts; O(1) a block, and no heap allocation
// after Create(). 16 + 36 bytes of host memory per block without stored tokens.

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
  // kOff: Insert() does nothing, nothing is ever found, and the index takes no memory.
  PrefixReuse reuse = PrefixReuse::kOn;
  // The rest as in PrefixIndexOptions.
  int block_size = 16;
  int num_groups = 1;
  PrefixTokens tokens = PrefixTokens::kNotStored;
  std::optional<PrefixSeed> seed = std::nullopt;
  int64_t num_events = 0;
};

// Invariants, checked by CheckInvariants():
//   1. Those of the pool and of the index.
//   2. A block is indexed if and only if it has content.
//   3. Blocks that share a key with others are all used.
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

  // Like BlockPool::AllocateReserved(); evicted blocks are no longer found. Work that must leave the
  // reserve alone first calls CheckAcquirable().
  absl::Status AllocateReserved(absl::Span<BlockId> blocks);

  // Whether `num_fresh` blocks can be allocated after all of `hits` have been shared (null blocks
  // are skipped), with or without the reserve: a cached block that is shared can no longer be
  // evicted. Errors: those of the pool's Allocate() and AllocateReserved().
  // REQUIRES: every hit but null blocks is used or has content, as blocks that the index has just
  // found do.
  absl::Status CheckAcquirable(absl::Span<const BlockId> hits, int64_t num_fresh) const;
  absl::Status CheckAcquirableReserved(absl::Span<const BlockId> hits, int64_t num_fresh) const;

  // As the pool's.
  void Share(BlockId block) { pool_.Share(block); }
  void Release(BlockId block);

  // Makes `block` findable by `key`: it is full and has the key's content for all later readers (on
  // the same stream, if it is still being written). No effect if it is inserted already or reuse is
  // off. REQUIRES: it is used, and as PrefixIndex::Insert().
  void Insert(BlockId block, const PrefixKey& key);

  // `block` is no longer found. A cached one becomes free. No effect if it is not inserted.
  void Forget(BlockId block);

  // Forgets everything: for weights that have changed. Running sequences continue, but their blocks
  // belong to the old weights: do not insert them.
  void Clear();

  // Like the index's.
  void CountLookup(int64_t num_tokens_asked, int64_t num_tokens_hit) {
    index_.CountLookup(num_tokens_asked, num_tokens_hit);
  }
  PrefixEvents TakeEvents() { return index_.TakeEvents(); }

  int64_t num_bytes() const { return pool_.num_bytes() + index_.num_bytes(); }

  // Proves the invariants above; CHECK-fails with the number of the broken one and the block. For
  // tests and debug builds.
  void CheckInvariants() const;

 private:
  PrefixCache(BlockPool pool, PrefixIndex index, PrefixReuse reuse)
      : pool_(std::move(pool)), index_(std::move(index)), is_on_(reuse == PrefixReuse::kOn) {}

  int64_t CountUnused(absl::Span<const BlockId> hits) const;
  // Removes from the index the blocks in `blocks` that were evicted since the count was
  // `num_evictions_before`.
  void ForgetEvicted(absl::Span<const BlockId> blocks, int64_t num_evictions_before);

  BlockPool pool_;
  PrefixIndex index_;
  bool is_on_ = true;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_PREFIX_CACHE_H_
