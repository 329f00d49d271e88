// The blocks of a KV cache: which are free, which are in use and by how many, which hold content
// that may be used again, and which the device may still touch.
//
// A BlockPool hands out ids of fixed-size blocks. It knows nothing of tensors, layers or tokens: a
// block id indexes the block dimension of every KV tensor that shares the pool. What the content of
// a block is, others know (cache/prefix_index.h); cache/prefix_cache.h keeps both in agreement.
//
//   absl::StatusOr<BlockPool> pool = BlockPool::Create({.num_blocks = 1024});
//   std::array<BlockId, 3> blocks;
//   REPRISE_RETURN_IF_ERROR(pool->Allocate(absl::MakeSpan(blocks)));  // all three or none
//   pool->KeepContent(blocks[0]);   // it may be found again
//   pool->Release(blocks[2]);       // free
//   pool->Release(blocks[0]);       // cached: kept until its memory is needed
//
// Fences. A block that steps in flight, another stream or the host may still read or write must not
// be handed out again when it is released. A fence queue stands for one such consumer:
//
//   REPRISE_ASSIGN_OR_RETURN(FenceQueueId steps, pool->AddFenceQueue(std::move(fences)));
//   Launch(stream, ...);                          // uses the block some time later
//   const FenceTicket ticket = pool->Arm(steps);  // behind the launch
//   pool->Release(block, ticket);                 // nobody gets it before the ticket has passed
//
// Every ticket counts, also that of a Release that was not the last: a block shared by a sequence
// that is being swapped out is not handed out before the swap has read it.
//
// Eviction takes the cached block that was released the longest ago. So whoever releases a chain of
// blocks children first, each holder holding the parents of what it holds, never has a parent
// evicted before its cached children.
//
// Thread safety: none; one owner. Cost: every call is O(1) per block and allocates no memory after
// Create(), which takes 16 bytes a block, and 4 more a fence queue. (A fence queue grows when more
// releases wait at a time than the pool has blocks. A block that waits behind a slow queue at the
// old end of the cached ones is stepped over by each eviction.)

#ifndef CACHE_BLOCK_POOL_H_
#define CACHE_BLOCK_POOL_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/fence.h"
#include "base/ids.h"
#include "cache/fenced_releases.h"

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
  // are the last of `blocks`, as many as num_evictions() has grown by, and what was known of their
  // content is no longer true. If it is short of blocks it polls the fences before it gives up.
  // Errors, with nothing handed out and `blocks` unchanged:
  //   ResourceExhausted  fewer than blocks.size() can be had now; retry after releases
  //   InvalidArgument    more than this pool can ever give
  absl::Status Allocate(absl::Span<BlockId> blocks);

  // As Allocate(), but may use the reserve.
  absl::Status AllocateReserved(absl::Span<BlockId> blocks);

  // What Allocate() of so many blocks, in one call or several, would say now: for plans that change
  // nothing if one part of them fails. Polls the fences if it is short of blocks. num_blocks >= 0.
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

  // The content of `block` is worth nothing any more: if cached, it becomes free. No effect without
  // content. REQUIRES: 0 < block < num_blocks().
  void DropContent(BlockId block);

  bool has_content(BlockId block) const;

  // Whether a ticket that `block` was released under has not passed, as of the last Poll(): another
  // user may still be reading it. REQUIRES: 0 <= block < num_blocks().
  bool is_awaited(BlockId block) const;

  // Adds a consumer; at least two fences (base/fence_queue.h says why). One more than the steps
  // that may be in flight is enough to let every block go as early as it can be.
  // Errors: InvalidArgument, from FenceQueue::Create().
  absl::StatusOr<FenceQueueId> AddFenceQueue(std::vector<std::unique_ptr<Fence>> fences);

  // A ticket that passes when the consumer has done everything submitted to it so far. Any number
  // of blocks may be released under it. REQUIRES: `queue` is of this pool.
  FenceTicket Arm(FenceQueueId queue);

  // Whether the consumer has passed `ticket` by now. Does not block, and lets no block go.
  // REQUIRES: `ticket` is from this pool.
  bool HasPassed(FenceTicket ticket);

  // Lets blocks go whose tickets have passed. Does not block. O(fence queues + releases let go).
  void Poll();

  // Blocks until `ticket` has passed, and polls. REQUIRES: `ticket` is from this pool.
  void Wait(FenceTicket ticket);

  // Waits for fences, as few as can be in each queue's order, until Allocate() of `num_blocks`
  // would succeed or no block is fenced any more; then says what CheckAllocatable() says.
  absl::Status WaitForAllocatable(int64_t num_blocks);

  BlockState state(BlockId block) const;

  // Users of `block`. REQUIRES, these two: 0 <= block < num_blocks(). 0 for the null block, whose
  // state is free.
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

#endif  // CACHE_BLOCK_POOL_H_
