// A pool of KV blocks of one size. Tracks which blocks are free, in use (with a reference count) or
// cached.
//
// A BlockPool allocates block ids. It is independent of tensors, layers and tokens: a block id
// indexes the block dimension of every KV tensor that shares the pool. PrefixIndex
// (cache/prefix/prefix_index.h) maps content to blocks; cache/blocks/prefix_cache.h keeps both
// consistent.
//
//   absl::StatusOr<BlockPool> pool = BlockPool::Create({.num_blocks = 1024});
//   std::array<BlockId, 3> blocks;
//   REPRISE_RETURN_IF_ERROR(pool->Allocate(absl::MakeSpan(blocks)));  // all three or none
//   pool->KeepContent(blocks[0]);   // its content can be found again
//   pool->Release(blocks[2]);       // free
//   pool->Release(blocks[0]);       // cached: kept until the block is needed
//
// Each user of a block has a reference. A user is a sequence, a pending copy
// (cache/blocks/pending_copies.h), or a copy on another stream that still reads or writes the block
// (cache/blocks/swap_store.h). Steps on one stream take no references, because the stream orders
// them.
//
// Thread safety: not thread-safe; one owner. Cost: O(1) per block. Does not allocate after
// Create(), which takes 16 bytes per block.

#ifndef REPRISE_CACHE_BLOCKS_BLOCK_POOL_H_
#define REPRISE_CACHE_BLOCKS_BLOCK_POOL_H_

#include <cstdint>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"

namespace reprise {

struct BlockPoolOptions {
  // Number of blocks in the pool, including the null block. At least 2.
  int num_blocks = 0;
  // Number of blocks that only AllocateReserved() may take. For work that must not fail midway,
  // such as the next token of a running sequence. 0 <= num_reserved_blocks < num_blocks - 1.
  int num_reserved_blocks = 0;
};

enum class BlockState : int8_t { kFree, kUsed, kCached };

std::ostream& operator<<(std::ostream& out, BlockState state);

// Every block except the null block is in one of three states:
//
// - used:    At least one reference. In no list. Content, if any, can be found and shared.
// - cached:  No reference, but content that can be found again. In the LRU list, in order of the
//            last release.
// - free:    No reference and no content. In the free list.
//
// Only these calls change the state of a block:
//
//   Allocate()     free -> used. If no block is free: oldest cached block -> used, without content.
//   Share()        cached -> used. Adds a reference to a used block.
//   Release()      Removes a reference. Last reference: used -> cached (with content) or free.
//   DropContent()  cached -> free.
//
// Eviction takes the cached block whose last reference was released the longest time ago. If every
// holder of a block also holds the block's parents, and releases children first, no parent is
// evicted before its cached children.
//
// Invariants, checked by CheckInvariants():
//   1. num_free() + num_used() + num_cached() + 1 == num_blocks(), and no block is in two lists.
//   2. Block 0, the null block, is never allocated and never released.
//   3. Each block is in the list of its state, and the counts match the blocks.
//   4. num_allocatable() == max(num_free() + num_cached() - reserve, 0).
class BlockPool {
 public:
  // Errors: InvalidArgument, naming the option that is out of range.
  static absl::StatusOr<BlockPool> Create(const BlockPoolOptions& options);

  BlockPool(BlockPool&&) = default;
  BlockPool& operator=(BlockPool&&) = default;

  // Fills `blocks` with distinct blocks, each with ref_count 1 and without content. Takes free
  // blocks first, then evicts cached blocks in LRU order, whose content is lost. The evicted blocks
  // are at the end of `blocks`; their number is the increase of num_evictions(). On error,
  // allocates nothing and leaves `blocks` unchanged. Errors:
  //   ResourceExhausted  fewer than blocks.size() blocks are available now; retry after releases
  //   InvalidArgument    more blocks than the pool can ever allocate
  absl::Status Allocate(absl::Span<BlockId> blocks);

  // Like Allocate(), but may use the reserved blocks.
  absl::Status AllocateReserved(absl::Span<BlockId> blocks);

  // Returns the result that allocating `num_blocks` >= 0 blocks, in one or several calls, would
  // have now. For plans that must change nothing if one part fails.
  absl::Status CheckAllocatable(int64_t num_blocks) const;
  absl::Status CheckAllocatableReserved(int64_t num_blocks) const;

  // Adds a reference. A cached block keeps its content. REQUIRES: `block` is used or cached.
  void Share(BlockId block);

  // Removes a reference. REQUIRES: `block` is used.
  void Release(BlockId block);

  // Marks the content of `block` as worth keeping: the last Release() makes it cached. REQUIRES:
  // `block` is used.
  void KeepContent(BlockId block);

  // Drops the content of `block`. A cached block becomes free. No effect without content. REQUIRES:
  // 0 < block < num_blocks().
  void DropContent(BlockId block);

  bool has_content(BlockId block) const;

  BlockState state(BlockId block) const;

  // Number of references to `block`. 0 for the null block, whose state is free. REQUIRES for
  // state() and ref_count(): 0 <= block < num_blocks().
  int ref_count(BlockId block) const;

  int num_blocks() const { return static_cast<int>(nodes_.size()); }
  int num_reserved_blocks() const { return num_reserved_blocks_; }
  int num_free() const { return num_free_; }
  int num_cached() const { return num_cached_; }
  int num_used() const { return num_blocks() - 1 - num_free_ - num_cached_; }

  // Maximum of num_used() so far.
  int peak_used() const { return peak_used_; }

  // Number of cached blocks that were evicted so far.
  int64_t num_evictions() const { return num_evictions_; }

  // Number of blocks that Allocate() could return now: free and cached blocks, minus the reserve.
  int num_allocatable() const;

  // Number of blocks that AllocateReserved() could return now.
  int num_allocatable_reserved() const { return num_free_ + num_cached_; }

  // Host memory of the pool.
  int64_t num_bytes() const { return static_cast<int64_t>(nodes_.capacity() * sizeof(Node)); }

  // Checks the invariants above. CHECK-fails with the number of the violated invariant and the
  // block. O(num_blocks), allocates. For tests and debug builds.
  void CheckInvariants() const;

 private:
  // One block. Lists are linked by ids, so that a node is half as large as with pointers.
  struct Node {
    int32_t ref_count = 0;
    int32_t previous = 0;  // in the LRU list
    int32_t next = 0;      // in the LRU list or in the free list
    bool has_content = false;
  };

  explicit BlockPool(const BlockPoolOptions& options);

  absl::Status CheckKeeping(int num_kept_back, int64_t num_blocks) const;
  absl::Status AllocateKeeping(int num_kept_back, absl::Span<BlockId> blocks);
  int32_t TakeFree();
  int32_t TakeOldestCached();
  void CheckOfThisPool(BlockId block) const;
  Node& UsedNode(BlockId block, const char* call);
  void PushFree(int32_t block);
  void LinkNewest(int32_t block);
  void Unlink(int32_t block);

  // Nodes by block id. The null block's node terminates both lists. In the LRU list, which is a
  // ring, its next is the oldest block and its previous the newest.
  std::vector<Node> nodes_;
  int32_t first_free_ = 0;
  int num_free_ = 0;
  int num_cached_ = 0;
  int num_reserved_blocks_ = 0;
  int peak_used_ = 0;
  int64_t num_evictions_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_BLOCK_POOL_H_
