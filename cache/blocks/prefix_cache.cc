#include "reprise/cache/blocks/prefix_cache.h"

#include <glog/logging.h>

#include "reprise/base/status_macros.h"

namespace reprise {

absl::StatusOr<PrefixCache> PrefixCache::Create(const PrefixCacheOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(BlockPool pool, BlockPool::Create(options.pool));
  PrefixIndexOptions index_options = {.num_blocks = options.pool.num_blocks,
                                      .block_size = options.block_size,
                                      .num_groups = options.num_groups,
                                      .tokens = options.tokens,
                                      .seed = options.seed,
                                      .num_events = options.num_events};
  if (options.reuse == PrefixReuse::kOff) {
    // Smallest possible index. It serves lookups, but no block is ever inserted.
    index_options.num_blocks = 2;
    index_options.tokens = PrefixTokens::kNotStored;
  }
  REPRISE_ASSIGN_OR_RETURN(PrefixIndex index, PrefixIndex::Create(index_options));
  return PrefixCache(std::move(pool), std::move(index), options.reuse);
}

absl::Status PrefixCache::AllocateReserved(absl::Span<BlockId> blocks) {
  const int64_t num_evictions_before = pool_.num_evictions();
  REPRISE_RETURN_IF_ERROR(pool_.AllocateReserved(blocks));
  ForgetEvicted(blocks, num_evictions_before);
  return absl::OkStatus();
}

void PrefixCache::ForgetEvicted(absl::Span<const BlockId> blocks, int64_t num_evictions_before) {
  const int64_t num_evicted = pool_.num_evictions() - num_evictions_before;
  for (const BlockId block : blocks.last(num_evicted)) index_.Remove(block);
}

int64_t PrefixCache::CountUnused(absl::Span<const BlockId> hits) const {
  int64_t num_unused = 0;
  for (const BlockId block : hits) {
    num_unused += block != kNullBlock && pool_.ref_count(block) == 0;
  }
  return num_unused;
}

absl::Status PrefixCache::CheckAcquirable(absl::Span<const BlockId> hits, int64_t num_fresh) const {
  return pool_.CheckAllocatable(CountUnused(hits) + num_fresh);
}

absl::Status PrefixCache::CheckAcquirableReserved(absl::Span<const BlockId> hits,
                                                  int64_t num_fresh) const {
  return pool_.CheckAllocatableReserved(CountUnused(hits) + num_fresh);
}

void PrefixCache::Release(BlockId block) {
  const bool is_last = pool_.ref_count(block) == 1;
  if (is_last && pool_.has_content(block) && index_.has_duplicates(block)) Forget(block);
  pool_.Release(block);
}

void PrefixCache::Insert(BlockId block, const PrefixKey& key) {
  CHECK_GT(pool_.ref_count(block), 0) << "Insert of block " << block << ", which is not used";
  if (!is_on_ || pool_.has_content(block)) return;
  if (index_.Insert(block, key) == PrefixInsertion::kCollision) return;
  pool_.KeepContent(block);
  // If there is an unused block with the key, it is the only other block with the key, and
  // therefore the first.
  const BlockId first = index_.first_of_key(block);
  if (pool_.ref_count(first) == 0) Forget(first);
}

void PrefixCache::Forget(BlockId block) {
  if (!pool_.has_content(block)) return;
  index_.Remove(block);
  pool_.DropContent(block);
}

void PrefixCache::Clear() {
  index_.Clear();
  for (int32_t block = 1; block < pool_.num_blocks(); ++block) pool_.DropContent(BlockId(block));
}

void PrefixCache::CheckInvariants() const {
  pool_.CheckInvariants();
  index_.CheckInvariants();
  if (!is_on_) return;
  for (int32_t i = 1; i < pool_.num_blocks(); ++i) {
    const BlockId block(i);
    CHECK_EQ(index_.contains(block), pool_.has_content(block)) << "invariant 2, block " << block;
    if (!index_.contains(block) || !index_.has_duplicates(block)) continue;
    CHECK_GT(pool_.ref_count(block), 0) << "invariant 3, block " << block;
  }
}

}  // namespace reprise
