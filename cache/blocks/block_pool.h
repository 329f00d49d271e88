// The blocks of a KV cache: free blocks, blocks in use with their number of users, blocks with
// content that may be reused, and blocks that the device may still access.
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
// Fences. A block that steps in flight, another stream or the host may still read or write must not
// be handed out again when it is released. A fence queue represents one such consumer:
//
//   REPRISE_ASSIGN_OR_RETURN(FenceQueueId steps, pool->AddFenceQueue(std::move(fences)));
//   Launch(stream, ...);                          // uses the block some time later
//   const FenceTicket ticket = pool->Arm(steps);  // after the launch
//   pool->Release(block, ticket);                 // not handed out before the ticket has passed
//
// Every ticket counts, also that of a Release that was not the last: a block shared by a sequence
// that is being swapped out is not handed out before the swap has read it.
//
// Eviction takes the cached block that was released the longest ago. So if every holder of a block
// also holds its parents, and releases children first, no parent is evicted before its cached
// children.
//
// Thread safety: none; one owner. Cost: every call is O(1) per block and allocates no memory after
// Create(), which takes 16 bytes a block, and 4 more a fence queue. (A fence queue grows when more
// releases wait at a time than the pool has blocks. Each eviction skips the blocks at the old end
// of the cached ones that wait for a slow queue.)

#ifndef REPRISE_CACHE_BLOCKS_BLOCK_POOL_H_
#define REPRISE_CACHE_BLOCKS_BLOCK_POOL_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/fence.h"
#include "reprise/base/ids.h"
#include "reprise/cache/blocks/fenced_releases.h"

namespace reprise {

struct BlockPoolOptions {
  // Blocks in the pool, the null block included. At least 2.
  int num_blocks = 0;
  // Allocate() keeps this many blocks back; AllocateReserved() may take them. For work that must
  // not fail midway, such as the next token of a running sequence. 0 <= num_reserved_blocks <
  // num_blocks - 1.
  int num_reserved_blocks = 0;
};

// A consumer that blocks wait for: an index in the order of AddFenceQueue().
using FenceQueueId = StrongId<struct FenceQueueIdTag, int32_t>;

// A point in the work of a consumer.
struct FenceTicket {
  FenceQueueId queue = {};
  int64_t number = 0;  // ascending within the queue; 0 has always passed
};

enum class BlockState : int8_t { kFree, kUsed, kCached, kFenced };

std::ostream& operator<<(std::ostream& out, BlockState state);

// Block states. Every block but the null block is in exactly one:
//
//   state    ref_count  waiting tickets  content  in which list  leaves by
//   free     0          none             no       free list      Allocate -> used
//   used     >= 1       any              maybe    none           the last Release: tickets still
//                                                                waiting -> fenced, else with
//                                                                content -> cached, else -> free
//   cached   0          none             yes      LRU list       Share -> used; Allocate (the
//                                                                oldest first) -> used, content
//                                                                dropped; DropContent -> free
//   fenced   0          some             maybe    LRU list if    the last ticket passes: with
//                                                 with content   content -> cached, in its old
//                                                                place in the LRU list, else ->
//                                                                free; Share (with content) -> used
//
// Invariants, checked by CheckInvariants():
//   1. |free| + |used| + |cached| + |fenced| + 1 == num_blocks, and no block is in two lists.
//   2. Block 0, the null block, is never handed out and never released.
//   3. Each block's list is that of its state, and the counts of states are those of the blocks.
//   4. A block's waiting tickets are its entries in the fence queues.
//   5. num_allocatable() == max(|free| + |cached| - reserve, 0).
class BlockPool {
 public:
  // Errors: InvalidArgument, naming the field, if an option is out of range.
  static absl::StatusOr<BlockPool> Create(const BlockPoolOptions& options);

  BlockPool(BlockPool&&) = default;
  BlockPool& operator=(BlockPool&&) = default;

  // Fills `blocks` with distinct blocks, each with ref_count 1 and without content. Takes free
  // blocks first, then evicts cached ones, those released the longest ago first: the evicted ones
  // are the last of `blocks`, as many as num_evictions() has grown by, and their content is lost.
  // If it is short of blocks it polls the fences before it fails.
  // Errors, with nothing handed out and `blocks` unchanged:
  //   ResourceExhausted  fewer than blocks.size() can be had now; retry after releases
  //   InvalidArgument    more than this pool can ever give
  absl::Status Allocate(absl::Span<BlockId> blocks);

  // As Allocate(), but may use the reserve.
  absl::Status AllocateReserved(absl::Span<BlockId> blocks);

  // The result that Allocate() of `num_blocks` blocks, in one call or several, would have now: for
  // plans that change nothing if a part fails. Polls the fences if it is short of blocks.
  // num_blocks >= 0.
  absl::Status CheckAllocatable(int64_t num_blocks);
  absl::Status CheckAllocatableReserved(int64_t num_blocks);

  // Adds a reference. REQUIRES: `block` is used, or cached or fenced with content, which it keeps.
  void Share(BlockId block);

  // Drops a reference. REQUIRES: `block` is used.
  void Release(BlockId block);

  // Drops a reference; whether it was the last or not, the block is not handed out before `ticket`
  // has passed. Content stays findable and shareable meanwhile: a fence guards against overwriting,
  // not against reading. REQUIRES: `block` is used, and `ticket` is from this pool.
  void Release(BlockId block, FenceTicket ticket);

  // From now on the last Release makes `block` cached. REQUIRES: `block` is used.
  void KeepContent(BlockId block);

  // Drops the content of `block`: if cached, it becomes free. No effect without content.
  // REQUIRES: 0 < block < num_blocks().
  void DropContent(BlockId block);

  bool has_content(BlockId block) const;

  // Whether a ticket that `block` was released under has not passed, as of the last Poll(): another
  // user may still be reading it. REQUIRES: 0 <= block < num_blocks().
  bool is_awaited(BlockId block) const;

  // Adds a consumer; at least two fences (see base/fence_queue.h). With one more than the steps
  // that may be in flight, every block is freed as early as possible.
  // Errors: InvalidArgument, from FenceQueue::Create().
  absl::StatusOr<FenceQueueId> AddFenceQueue(std::vector<std::unique_ptr<Fence>> fences);

  // A ticket that passes when the consumer has done everything submitted to it so far. Any number
  // of blocks may be released under it. REQUIRES: `queue` is of this pool.
  FenceTicket Arm(FenceQueueId queue);

  // Whether the consumer has passed `ticket` by now. Does not block, and frees no block.
  // REQUIRES: `ticket` is from this pool.
  bool HasPassed(FenceTicket ticket);

  // Frees blocks whose tickets have passed. Does not block. O(fence queues + blocks freed).
  void Poll();

  // Blocks until `ticket` has passed, and polls. REQUIRES: `ticket` is from this pool.
  void Wait(FenceTicket ticket);

  // Waits for fences until Allocate() of `num_blocks` would succeed or no block is fenced any more;
  // then says what CheckAllocatable() says. Each round waits for the oldest ticket of every queue
  // that blocks wait for, so a slow queue delays it even where releases of another would do.
  absl::Status WaitForAllocatable(int64_t num_blocks);

  BlockState state(BlockId block) const;

  // Users of `block`; 0 for the null block, whose state is free. REQUIRES for both:
  // 0 <= block < num_blocks().
  int ref_count(BlockId block) const;

  int num_blocks() const { return static_cast<int>(nodes_.size()); }
  int num_reserved_blocks() const { return num_reserved_blocks_; }
  int num_free() const { return num_free_; }
  int num_cached() const { return num_cached_; }
  int num_fenced() const { return num_fenced_; }
  int num_used() const { return num_blocks() - 1 - num_free_ - num_cached_ - num_fenced_; }

  // Releases that wait for a ticket: at least one a fenced block, and those of used blocks.
  int64_t num_waiting_releases() const;

  // The most that num_used() ever was.
  int peak_used() const { return peak_used_; }

  // Cached blocks that Allocate() ever handed out.
  int64_t num_evictions() const { return num_evictions_; }

  // Blocks that Allocate() could hand out now, as of the last Poll(): the free and the cached ones
  // beyond the reserve.
  int num_allocatable() const;

  // Blocks that AllocateReserved() could hand out now.
  int num_allocatable_reserved() const { return num_free_ + num_cached_; }

  // Host memory that the pool holds, fence queues included, fences not.
  int64_t num_bytes() const;

  // Proves the invariants above; CHECK-fails with the number of the broken one and the block.
  // O(num_blocks), allocates. For tests and debug builds.
  void CheckInvariants() const;

 private:
  // One block. Lists are linked through ids, so that a node is half as large as with pointers.
  struct Node {
    int32_t ref_count = 0;
    int32_t previous = 0;  // in the LRU list
    int32_t next = 0;      // in the LRU list or in the free list
    uint32_t num_waiting : 31 = 0;
    uint32_t has_content : 1 = 0;
  };

  explicit BlockPool(const BlockPoolOptions& options);

  absl::Status CheckKeeping(int num_kept_back, int64_t num_blocks);
  absl::Status AllocateKeeping(int num_kept_back, absl::Span<BlockId> blocks);
  int32_t TakeFree();
  int32_t TakeOldestCached();
  void CheckOfThisPool(BlockId block) const;
  Node& UsedNode(BlockId block, const char* call);
  void DropReference(int32_t block);
  void PassTicket(BlockId block);
  void PushFree(int32_t block);
  void LinkNewest(int32_t block);
  void Unlink(int32_t block);

  // By block. The null block's node is the end of both lists: of the LRU list, a ring, its next is
  // the oldest and its previous the newest.
  std::vector<Node> nodes_;
  std::vector<FencedReleases> queues_;  // by FenceQueueId
  int32_t first_free_ = 0;
  int num_free_ = 0;
  int num_cached_ = 0;
  int num_fenced_ = 0;
  int num_reserved_blocks_ = 0;
  int peak_used_ = 0;
  int64_t num_evictions_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_BLOCK_POOL_H_
