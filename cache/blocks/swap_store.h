// Bookkeeping of swapped sequences: they release their blocks on the device, keep their content in
// host memory, and return to any slot bitwise identical. KvSwapper (cache/ops/kv_swapper.h) moves
// the bytes.
//
//   // Fences over swapper->stream(), base/cuda_fence.h.
//   SwapStore store = *SwapStore::Create({.num_host_blocks = 4096}, &manager, std::move(fences));
//   store.Poll();                                         // in every iteration of the loop
//   REPRISE_RETURN_IF_ERROR(store.PlanOut(slot, id));     // plans only
//   REPRISE_RETURN_IF_ERROR(store.PlanIn(other_id, other_slot));
//   REPRISE_ASSIGN_OR_RETURN(SwapTicket out, swapper->SwapOut(store.copies_out()));
//   REPRISE_ASSIGN_OR_RETURN(SwapTicket in, swapper->SwapIn(store.copies_in()));
//   REPRISE_RETURN_IF_ERROR(swapper->Await(in));          // the next step waits for it
//   store.Launched();                                     // `slot` is now empty
//
// If a swap cannot be launched, Abandon() cancels the plan.
//
// One swap stream runs all copies in both directions, in the order of the calls. Events order it
// with the steps. The swap stream waits for the steps that wrote the blocks to swap out, and for
// the steps that used the blocks to swap in. A step waits for the swap-ins before it, but not for
// swap-outs. Instead, the store holds the device blocks that a copy reads (BlockManager::Hold) from
// PlanOut() until an event after the copy has completed. Held blocks are not reallocated, but
// prompts can find and share those in the prefix index. Host blocks are kept until the same event,
// so that the copy has written or read them.
//
// The store polls events only in its own calls. If an allocation of the manager fails with
// ResourceExhausted while num_held() > 0, call Poll() and retry later.
//
// Order with the manager's copies (BlockManager::TakeCopies): launch the copies that TakeCopies()
// has returned before the next SwapOut() or SwapIn(). Copies that it returns later may read blocks
// that were swapped in; run them after Await(). In between, no copy reads an unfilled block: a
// sequence that is planned in is swapping in (BlockManager::Restore). Until Launched(), its blocks
// are not found, it cannot be forked, and calls that would release its blocks are refused.
//
// Host blocks have separate ids, 1 to num_host_blocks - 1. Host block 0 is never used.
//
//   state          the sequence's blocks                      leaves by
//   (none)         on the device, in its slot                 PlanOut -> planned
//   planned        on the device; host blocks are allocated   Launched -> swapping out;
//                                                             Abandon -> (none)
//   swapping out   device blocks held, host blocks being      copy completes -> stored;
//                  written                                    PlanIn -> swapping in; Drop -> (none)
//   stored         on the host                                PlanIn -> swapping in; Drop -> (none)
//   swapping in    on the host; device blocks allocated in    Launched -> (none), host blocks
//                  the new slot                               released once read;
//                                                             Abandon -> stored
//
// Only committed tokens are swapped out (BlockManager::Commit); tokens in flight are recomputed.
//
// Errors change nothing, except that PlanOut() and PlanIn() may release blocks of completed copies.
// Thread safety: not thread-safe; one owner. Cost: O(1) per block; allocates, because swaps are
// rare.
//
// Ownership: the manager must outlive the store; the store owns the fences. The store owns no
// memory that a copy reads or writes: KvSwapper keeps that memory, and its destructor waits for the
// copies in flight. The destructor of the store does not wait. Device blocks that the store still
// holds remain held, so the manager never reallocates them. Slots of a pending plan keep their
// state.

#ifndef REPRISE_CACHE_BLOCKS_SWAP_STORE_H_
#define REPRISE_CACHE_BLOCKS_SWAP_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/fence.h"
#include "reprise/base/ids.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/blocks/block_pool.h"
#include "reprise/cache/blocks/deferred_releases.h"
#include "reprise/cache/blocks/fence_queue.h"

namespace reprise {

// A block of host memory, as large as a device block over all layers.
using HostBlockId = StrongId<struct HostBlockIdTag, int32_t>;

struct SwapStoreOptions {
  int num_host_blocks = 0;  // including the null block; at least 2
};

// The state of a sequence in the store.
enum class SwapState : int8_t { kPlanned, kSwappingOut, kStored, kSwappingIn };

std::ostream& operator<<(std::ostream& out, SwapState state);

// Invariants, checked by CheckInvariants():
//   1. The invariants of the host block pool.
//   2. Every host block in use has one reference, which belongs to a sequence in the store or to a
//      deferred release.
//   3. A planned sequence is in its slot, with unchanged committed tokens. A sequence that is
//      swapping in is in its slot, and the manager's is_swapping_in() is true for the slot.
//   4. For each device block, the manager has at least one hold per planned copy out and per
//      deferred release of the block.
class SwapStore {
 public:
  // `fences` are at least 2 fences of the swap stream. With one more than the maximum number of
  // swaps in flight, every block is released as early as possible. Errors: InvalidArgument, naming
  // the option or the fences.
  static absl::StatusOr<SwapStore> Create(const SwapStoreOptions& options, BlockManager* manager,
                                          std::vector<std::unique_ptr<Fence>> fences);

  SwapStore(SwapStore&&) = default;
  SwapStore& operator=(SwapStore&&) = default;

  // Allocates host blocks for the sequence in `slot`, holds its device blocks, and adds the copies
  // to the plan. The caller must not change the slot until Launched() or Abandon(). Errors:
  //   NotFound, InvalidArgument  the slot is empty, or does not exist
  //   FailedPrecondition         the sequence in the slot is swapping in
  //   AlreadyExists              the id is in the store
  //   FailedPrecondition         the slot is in the plan already; the plan has swap-ins, which run
  //                              after swap-outs; the manager has pending copies
  //   ResourceExhausted          too few free host blocks; retry after other sequences return
  //   InvalidArgument            the sequence needs more than all host blocks
  absl::Status PlanOut(SlotId slot, SequenceId id);

  // Allocates device blocks for a stored sequence in an empty slot, and adds the copies to the
  // plan. From the next step, its committed tokens are as they were at its swap-out. Until
  // Launched(), it is swapping in. Errors: NotFound if the id is not in the store.
  // FailedPrecondition if the sequence has not left its slot yet or is in the plan already. Also
  // the errors of BlockManager::Restore().
  absl::Status PlanIn(SequenceId id, SlotId slot);

  // The copies of the plan. copies_out: src is a device block, dst a host block; copies_in: the
  // reverse. Valid until the plan changes.
  absl::Span<const BlockCopy> copies_out() const { return copies_out_; }
  absl::Span<const BlockCopy> copies_in() const { return copies_in_; }

  // Reports that all copies of the plan have been launched on the swap stream, swap-outs before
  // swap-ins. The slots planned out become empty, and the sequences planned in leave the store. No
  // effect if the plan is empty. Otherwise polls: blocks of copies that have already completed are
  // released.
  void Launched();

  // Cancels the plan if its copies cannot all be launched. Sequences planned out stay in their
  // slots. Sequences planned in leave their slots and are stored again. Copies of the plan that
  // were launched do no harm: the blocks that they write are not reallocated before the copies have
  // completed.
  void Abandon();

  // Removes a sequence from the store. Errors: NotFound; FailedPrecondition while the sequence is
  // in the plan.
  absl::Status Drop(SequenceId id);

  // Releases the device and host blocks of completed copies. Does not block. O(blocks released).
  void Poll();

  // Number of holds of device blocks that wait for a copy to complete, as of the last Poll().
  int64_t num_held() const { return device_releases_.size(); }

  // The state of a sequence, or nullopt if the id is not in the store. Queries the fences.
  std::optional<SwapState> state(SequenceId id);
  // Number of committed tokens of a sequence in the store. REQUIRES: the id is in the store.
  int num_tokens(SequenceId id) const;
  // The sequence's host blocks, group by group, in column order. REQUIRES: as num_tokens().
  absl::Span<const HostBlockId> blocks(SequenceId id) const;

  int num_sequences() const { return static_cast<int>(stored_.size()); }
  const BlockPool& host_pool() const { return host_pool_; }

  void CheckInvariants() const;

 private:
  struct Stored {
    SavedSequence saved;
    std::vector<HostBlockId> blocks;
    std::optional<SlotId> planned_from;  // while planned
    std::optional<SlotId> planned_to;    // while swapping in
    int64_t written = 0;                 // event after which the host blocks have the content
  };

  SwapStore(BlockManager* manager, BlockPool host_pool, FenceQueue events);

  absl::Status CheckNotPlanned(SequenceId id, const Stored& stored) const;
  bool is_plan_empty() const { return planned_out_.empty() && planned_in_.empty(); }
  // Releases the sequence's host blocks after `event`.
  void ReleaseAfter(int64_t event, const Stored& stored);
  void EndPlan();

  BlockManager* manager_;
  BlockPool host_pool_;
  FenceQueue events_;                 // events of the swap stream
  DeferredReleases device_releases_;  // deferred Drop() calls to *manager_
  DeferredReleases host_releases_;    // deferred releases to host_pool_
  absl::flat_hash_map<SequenceId, Stored> stored_;
  std::vector<SequenceId> planned_out_;
  std::vector<SequenceId> planned_in_;
  std::vector<BlockCopy> copies_out_;
  std::vector<BlockCopy> copies_in_;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_SWAP_STORE_H_
