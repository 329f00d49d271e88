// The bookkeeping of swapped sequences: they have released their blocks on the device, keep their
// content in host memory, and come back to any slot bit for bit. KvSwapper (cache/ops/kv_swapper.h)
// moves the bytes.
//
//   // Fences over swapper->stream(), base/cuda_fence.h.
//   SwapStore store = *SwapStore::Create({.num_host_blocks = 4096}, &manager, std::move(fences));
//   store.Poll();                                         // in every round of the loop
//   REPRISE_RETURN_IF_ERROR(store.PlanOut(slot, id));     // nothing has moved yet
//   REPRISE_RETURN_IF_ERROR(store.PlanIn(other_id, other_slot));
//   REPRISE_ASSIGN_OR_RETURN(SwapTicket out, swapper->SwapOut(store.copies_out()));
//   REPRISE_ASSIGN_OR_RETURN(SwapTicket in, swapper->SwapIn(store.copies_in()));
//   REPRISE_RETURN_IF_ERROR(swapper->Await(in));          // the next step waits for the swap in
//   store.Launched();                                     // `slot` is empty from here on
//
// If a swap cannot be launched, Abandon() cancels the plan.
//
// One swap stream runs all copies, both ways, in the order of the calls. Events order it with the
// steps: the swap stream waits for the steps that wrote the blocks which go out and for those that
// used the blocks which come in; a step waits for the swaps in before it. A step does not wait for
// swaps out. Instead, the store holds the device blocks that a copy reads (BlockManager::Hold) from
// PlanOut() until an event after the copy has passed. Held blocks are not handed out, but prompts
// find and share them. The same event keeps host blocks until the copy has written or read them.
//
// The store learns of events only in its own calls. If an allocation of the manager fails with
// ResourceExhausted while num_held() is positive, call Poll() and try again later.
//
// Order with the manager's copies (BlockManager::TakeCopies): copies that were taken are launched
// before the next SwapOut() or SwapIn(). Copies that are taken later may read blocks that came in,
// and run after Await(). In between, no copy reads a block that is still to be filled: a sequence
// that is planned in is arriving (BlockManager::Restore). Until Launched() its blocks are not
// found, it cannot be forked, and calls that would release its blocks are refused.
//
// Host blocks have ids of their own, 1 to num_host_blocks - 1; host block 0 is never used.
//
//   state      the sequence's blocks                          leaves by
//   (none)     on the device, in its slot                     PlanOut -> planned
//   planned    on the device; host blocks are taken           Launched -> leaving;
//                                                             Abandon -> (none)
//   leaving    device blocks held, host blocks being          the copy passes -> stored;
//              written                                        PlanIn, Drop
//   stored     on the host                                    PlanIn -> arriving; Drop -> (none)
//   arriving   on the host; device blocks are taken, in the   Launched -> (none), host blocks
//              new slot                                       released once read;
//                                                             Abandon -> stored
//
// Only committed tokens go out (BlockManager::Commit); tokens in flight are computed again.
//
// Errors change nothing, but PlanOut() and PlanIn() may release blocks of copies that have ended.
// Thread safety: none; one owner. Cost: O(1) per block; allocates, since swaps are rare.
//
// Ownership: the manager outlives the store; the store owns the fences. The store owns no memory that
// a copy reads or writes: KvSwapper keeps that memory, and its destructor waits for the copies in
// flight. The destructor of the store does not wait. Device blocks that the store holds at its end
// stay held, so the manager never hands them out. Slots of a pending plan keep their state.

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

// A block of host memory, of the size of a device block over all layers.
using HostBlockId = StrongId<struct HostBlockIdTag, int32_t>;

struct SwapStoreOptions {
  int num_host_blocks = 0;  // the null block included; at least 2
};

enum class SwapState : int8_t { kPlanned, kLeaving, kStored, kArriving };

std::ostream& operator<<(std::ostream& out, SwapState state);

// Invariants, checked by CheckInvariants():
//   1. Those of the pool of host blocks.
//   2. Every host block in use has one reference, which belongs to a sequence in the store or to a
//      deferred release.
//   3. A planned sequence is in its slot, with the tokens it had; an arriving one is arriving in
//      its slot.
//   4. The manager holds each device block at least as often as the plan copies it out and deferred
//      releases name it.
class SwapStore {
 public:
  // `fences` are fences of the swap stream, at least 2. With one more than the maximum number of
  // swaps in flight, every block is released as early as possible.
  // Errors: InvalidArgument, naming the option or the fences.
  static absl::StatusOr<SwapStore> Create(const SwapStoreOptions& options, BlockManager* manager,
                                          std::vector<std::unique_ptr<Fence>> fences);

  SwapStore(SwapStore&&) = default;
  SwapStore& operator=(SwapStore&&) = default;

  // Takes host blocks for the sequence in `slot`, holds its device blocks, and adds the copies out.
  // The caller does not change the slot until Launched(). Errors:
  //   NotFound, InvalidArgument  no sequence in the slot, no such slot
  //   FailedPrecondition         the sequence in the slot is arriving
  //   AlreadyExists              the id is in the store
  //   FailedPrecondition         the slot is in the plan already; the plan has swaps in, which run
  //                              after those out; the manager has copies pending
  //   ResourceExhausted          too few host blocks now; retry after others came back
  //   InvalidArgument            more than all host blocks
  absl::Status PlanOut(SlotId slot, SequenceId id);

  // Gives a stored sequence device blocks in an empty slot and adds the copies in: from the next
  // step on it is as it was when it left. Until Launched() the manager has it as arriving. Errors:
  // NotFound for an id that is not in the store, FailedPrecondition for one that is only planned to
  // leave or is in the plan already, and those of BlockManager::Restore().
  absl::Status PlanIn(SequenceId id, SlotId slot);

  // The copies of the plan: src and dst are a device block and a host block, or the other way
  // round. Valid until the plan changes.
  absl::Span<const BlockCopy> copies_out() const { return copies_out_; }
  absl::Span<const BlockCopy> copies_in() const { return copies_in_; }

  // Reports that all copies of the plan have been launched on the swap stream, those out before
  // those in: the slots planned out become empty, and the sequences planned in leave the store. An
  // empty plan arms no fence. Polls: if the copies have ended already, their blocks are released.
  void Launched();

  // Cancels the plan, if its copies cannot all be launched: sequences planned out stay in their
  // slots, those planned in leave them and are stored as before. Copies of the plan that have been
  // launched do no harm: the blocks that they write are not handed out before the copies have ended.
  void Abandon();

  // Forgets a sequence. Errors: NotFound, FailedPrecondition while it is in the plan.
  absl::Status Drop(SequenceId id);

  // Releases the blocks of copies that have ended, on either side. Does not block. O(blocks
  // released).
  void Poll();

  // Number of references to device blocks that wait for the end of a copy, as of the last Poll().
  int64_t num_held() const { return device_releases_.size(); }

  // nullopt for an id that is not in the store. Queries the fences.
  std::optional<SwapState> state(SequenceId id);
  // Committed tokens of a sequence in the store. REQUIRES: state(id) has a value.
  int num_tokens(SequenceId id) const;
  // Its host blocks, group by group, in the order of their columns. REQUIRES: as above.
  absl::Span<const HostBlockId> blocks(SequenceId id) const;

  int num_sequences() const { return static_cast<int>(stored_.size()); }
  const BlockPool& host_pool() const { return host_pool_; }

  void CheckInvariants() const;

 private:
  struct Stored {
    SavedSequence saved;
    std::vector<HostBlockId> blocks;
    std::optional<SlotId> planned_from;  // while planned
    std::optional<SlotId> planned_to;    // while arriving
    int64_t written = 0;                 // the event after which the host blocks hold the content
  };

  SwapStore(BlockManager* manager, BlockPool host_pool, FenceQueue events);

  absl::Status CheckNotPlanned(SequenceId id, const Stored& stored) const;
  bool is_plan_empty() const { return planned_out_.empty() && planned_in_.empty(); }
  // Releases the sequence's host blocks after the event.
  void ReleaseAfter(int64_t event, const Stored& stored);
  void EndPlan();

  BlockManager* manager_;
  BlockPool host_pool_;
  FenceQueue events_;                 // events of the swap stream
  DeferredReleases device_releases_;  // holds of *manager_
  DeferredReleases host_releases_;    // references of host_pool_
  absl::flat_hash_map<SequenceId, Stored> stored_;
  std::vector<SequenceId> planned_out_;
  std::vector<SequenceId> planned_in_;
  std::vector<BlockCopy> copies_out_;
  std::vector<BlockCopy> copies_in_;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_SWAP_STORE_H_
