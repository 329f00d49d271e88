// A pool of the blocks of a KV cache. Tracks which blocks are in use, cached or free.
//
// A BlockPool hands out ids of fixed-size blocks. It knows nothing of tensors, layers or tokens: a
// block id indexes the block dimension of every KV tensor that shares the pool. PrefixIndex
// (cache/prefix/prefix_index.h) knows the content of blocks; cache/blocks/prefix_cache.h keeps both
// consistent.
//
//   absl::StatusOr<BlockPool> pool = BlockPool::Create({.num_blocks = 1024});
//   std::array<BlockId, 3> blocks;
//   REPRISE_RETURN_IF_ERROR(pool->Allocate(absl::MakeSpan(blocks)));  // all three or none
//   pool->KeepContent(blocks[0]);   // it may be found again
//   pool->Release(blocks[2]);       // free
//   pool->Release(blocks[0]);       // cached: kept until its memory is needed
//
// Each user of a block has a reference: a sequence, or a copy on another stream that still reads or
// writes the block (cache/blocks/swap_store.h). Steps on one stream take no references, because the
// stream orders them.
//
// Thread safety: none; one owner. Cost: every call is O(1) per block and allocates no memory after
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
  // Blocks in the pool, the null block included. At least 2.
  int num_blocks = 0;
  // Allocate() keeps this many blocks back; AllocateReserved() may take them. For work that must
  // not fail midway, such as the next token of a running sequence. 0 <= num_reserved_blocks <
  // num_blocks - 1.
  int num_reserved_blocks = 0;
};

enum class BlockState : int8_t { kFree, kUsed, kCached };

std::ostream& operator<<(std::ostream& out, BlockState state);

// Every block except the null block is in one of three states:
//
// - used:    One or more references. In no list. The content, if any, can be found and shared.
// - cached:  No reference, but content that can be found again. In the LRU list, in the order of the
//            last releases.
// - free:    No reference and no content. In the free list.
//
// Blocks change their state in these calls only:
//
//   Allocate()     free -> used. If no block is free: the oldest cached -> used, without content.
//   Share()        cached -> used. Adds a reference to a used block.
//   Release()      Removes a reference. After the last one: used -> cached with content, else free.
//   DropContent()  cached -> free.
//
// Eviction takes the cached block whose last reference was released the longest ago. If every holder
// of a block also holds the block's parents, and releases children first, no parent is evicted
// before its cached children.
//
// Invariants, checked by CheckInvariants():
//   1. num_free() + num_used() + num_cached() + 1 == num_blocks(), and no block is in two lists.
//   2. Block 0, the null block, is never handed out and never released.
//   3. Each block's list is the list of its state, and the counts of states match the blocks.
//   4. num_allocatable() == max(num_free() + num_cached() - reserve, 0).
class BlockPool {
 public:
  // Errors: InvalidArgument, naming the field, if an option is out of range.
  static absl::StatusOr<BlockPool> Create(const BlockPoolOptions& options);

  BlockPool(BlockPool&&) = default;
  BlockPool& operator=(BlockPool&&) = default;

  // Fills `blocks` with distinct blocks, each with ref_count 1 and without content. Takes free
  // blocks first, then evicts cached ones, those released the longest ago first: the evicted ones
  // are the last of `blocks`, as many as num_evictions() has grown by, and their content is lost.
  // Errors, with nothing handed out and `blocks` unchanged:
  //   ResourceExhausted  fewer than blocks.size() can be had now; retry after releases
  //   InvalidArgument    more than this pool can ever give
  absl::Status Allocate(absl::Span<BlockId> blocks);

  // As Allocate(), but may use the reserve.
  absl::Status AllocateReserved(absl::Span<BlockId> blocks);

  // The result that Allocate() of `num_blocks` blocks, in one call or several, would have now: for
  // plans that change nothing if a part fails. num_blocks >= 0.
  absl::Status CheckAllocatable(int64_t num_blocks) const;
  absl::Status CheckAllocatableReserved(int64_t num_blocks) const;

  // Adds a reference. A cached block keeps its content. REQUIRES: `block` is used or cached.
  void Share(BlockId block);

  // Drops a reference. REQUIRES: `block` is used.
  void Release(BlockId block);

  // From now on the last Release makes `block` cached. REQUIRES: `block` is used.
  void KeepContent(BlockId block);

  // Drops the content of `block`: if cached, it becomes free. No effect without content.
  // REQUIRES: 0 < block < num_blocks().
  void DropContent(BlockId block);

  bool has_content(BlockId block) const;

  BlockState state(BlockId block) const;

  // Users of `block`; 0 for the null block, whose state is free. REQUIRES for both:
  // 0 <= block < num_blocks().
  int ref_count(BlockId block) const;

  int num_blocks() const { return static_cast<int>(nodes_.size()); }
  int num_reserved_blocks() const { return num_reserved_blocks_; }
  int num_free() const { return num_free_; }
  int num_cached() const { return num_cached_; }
  int num_used() const { return num_blocks() - 1 - num_free_ - num_cached_; }

  // The most that num_used() ever was.
  int peak_used() const { return peak_used_; }

  // Cached blocks that Allocate() ever handed out.
  int64_t num_evictions() const { return num_evictions_; }

  // Blocks that Allocate() could hand out now: the free and the cached ones beyond the reserve.
  int num_allocatable() const;

  // Blocks that AllocateReserved() could hand out now.
  int num_allocatable_reserved() const { return num_free_ + num_cached_; }

  // Host memory that the pool holds.
  int64_t num_bytes() const { return static_cast<int64_t>(nodes_.capacity() * sizeof(Node)); }

  // Proves the invariants above; CHECK-fails with the number of the broken one and the block.
  // O(num_blocks), allocates. For tests and debug builds.
  void CheckInvariants() const;

 private:
  // One block. Lists are linked through ids, so that a node is half as large as with pointers.
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

  // By block. The null block's node is the end of both lists: of the LRU list, a ring, its next is
  // the oldest and its previous the newest.
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
