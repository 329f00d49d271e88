// The blocks of a KV cache: which are free, which are in use and by how many.
//
// A BlockPool hands out ids of fixed-size blocks. It knows nothing of tensors, layers or tokens: a
// block id indexes the block dimension of every KV tensor that shares the pool.
//
//   absl::StatusOr<BlockPool> pool = BlockPool::Create({.num_blocks = 1024});
//   std::array<BlockId, 3> blocks;
//   REPRISE_RETURN_IF_ERROR(pool->Allocate(absl::MakeSpan(blocks)));  // all three or none
//   pool->Release(blocks[2]);
//
// Thread safety: none; one owner. Cost: every call is O(1) per block and allocates no memory after
// Create(), which takes 8 bytes a block.

#ifndef CACHE_BLOCK_POOL_H_
#define CACHE_BLOCK_POOL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"

namespace reprise {

struct BlockPoolOptions {
  // Blocks in the pool, the null block included. At least 2.
  int num_blocks = 0;
  // Allocate() keeps this many blocks back; AllocateReserved() may take them. For work that must
  // not fail midway, such as the next token of a running sequence. 0 <= num_reserved_blocks <
  // num_blocks - 1.
  int num_reserved_blocks = 0;
};

// Block states. Every block but the null block is in exactly one:
//
//   state    ref_count  in which list  leaves by
//   free     0          free list      Allocate -> used
//   used     >= 1       none           the last Release -> free
//
// Invariants, checked by CheckInvariants():
//   1. |free| + |used| + 1 == num_blocks, and no block is in the free list twice.
//   2. Block 0, the null block, is never handed out and never released.
//   3. A block is in the free list if and only if its ref_count is 0 and it is not the null block.
class BlockPool {
 public:
  // Errors: InvalidArgument, naming the field, if an option is out of range.
  static absl::StatusOr<BlockPool> Create(const BlockPoolOptions& options);

  BlockPool(BlockPool&&) = default;
  BlockPool& operator=(BlockPool&&) = default;

  // Fills `blocks` with distinct blocks, each with ref_count 1; their content is undefined.
  // Errors, with the pool and `blocks` unchanged:
  //   ResourceExhausted  fewer than blocks.size() can be had now; retry after releases
  //   InvalidArgument    more than this pool can ever give
  absl::Status Allocate(absl::Span<BlockId> blocks);

  // As Allocate(), but may use the reserve.
  absl::Status AllocateReserved(absl::Span<BlockId> blocks);

  // Adds a reference. REQUIRES: `block` is used.
  void Share(BlockId block);

  // Drops a reference. REQUIRES: `block` is used. The last one makes it free.
  void Release(BlockId block);

  // Users of `block`. REQUIRES: 0 <= block < num_blocks(). 0 for free blocks and the null block.
  int ref_count(BlockId block) const;

  int num_blocks() const { return static_cast<int>(ref_counts_.size()); }
  int num_reserved_blocks() const { return num_reserved_blocks_; }
  int num_used() const { return num_blocks() - 1 - static_cast<int>(free_.size()); }

  // The most that num_used() ever was.
  int peak_used() const { return peak_used_; }

  // Blocks that Allocate() could hand out now: the free ones beyond the reserve.
  int num_allocatable() const;

  // Blocks that AllocateReserved() could hand out now.
  int num_allocatable_reserved() const { return static_cast<int>(free_.size()); }

  // Proves the invariants above; CHECK-fails with the number of the broken one and the block.
  // O(num_blocks), allocates. For tests and debug builds.
  void CheckInvariants() const;

 private:
  explicit BlockPool(const BlockPoolOptions& options);

  absl::Status AllocateKeeping(int num_kept_back, absl::Span<BlockId> blocks);

  std::vector<int32_t> ref_counts_;
  // A stack: a block released last is handed out first, while its memory may still be in a cache.
  std::vector<BlockId> free_;
  int num_reserved_blocks_ = 0;
  int peak_used_ = 0;
};

}  // namespace reprise

#endif  // CACHE_BLOCK_POOL_H_
