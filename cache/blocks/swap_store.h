// The bookkeeping of swapped sequences: they have released their blocks on the device, keep their
// content in host memory, and come back to any slot bit for bit. KvSwapper (cache/ops/kv_swapper.h)
// moves the bytes.
//
//   // Fences over swapper->stream(), base/cuda_fence.h.
//   SwapStore store = *SwapStore::Create({.num_host_blocks = 4096}, &manager, std::move(fences));
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
// swaps out: blocks that are being read are fenced, and not handed out before the copy has passed.
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
//   leaving    device blocks fenced, host blocks being        the copy passes -> stored;
//              written                                        PlanIn, Drop
//   stored     on the host                                    PlanIn -> arriving; Drop -> (none)
//   arriving   on the host; device blocks are taken, in the   Launched -> (none), host blocks
//              new slot                                       fenced until read;
//                                                             Abandon -> stored
//
// Only committed tokens go out (BlockManager::Commit); tokens in flight are computed again.
//
// Errors change nothing. Thread safety: none; one owner. Ownership: the manager outlives the store,
// the store owns the fences. Cost: O(1) a block; allocates, since swaps are rare.

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

namespace reprise {

// A block of host memory, of the size of a device block over all layers.
using HostBlockId = StrongId<struct HostBlockIdTag, int32_t>;

struct SwapStoreOptions {
  int num_host_blocks = 0;  // the null block included; at least 2
};

enum class SwapState : int8_t { kPlanned, kLeaving, kStored, kArriving };

std::ostream& operator<<(std::ostream& out, SwapState state);

// Fences of the swap stream, for the blocks of either side; at least two each. One more than the
// swaps that may be in flight at a time is enough.
struct SwapFences {
  std::vector<std::unique_ptr<Fence>> device;
  std::vector<std::unique_ptr<Fence>> host;
};

// Invariants, checked by CheckInvariants():
//   1. Those of the pool of host blocks.
//   2. Every sequence in the store has its own host blocks: each one's ref_count is 1, and no other
//      blocks are used.
//   3. A planned sequence is in its slot, with the tokens it had; an arriving one is arriving in
//      its slot.
class SwapStore {
 public:
  // Errors: InvalidArgument, naming the option or the fences.
  static absl::StatusOr<SwapStore> Create(const SwapStoreOptions& options, BlockManager* manager,
                                          SwapFences fences);

  SwapStore(SwapStore&&) = default;
  SwapStore& operator=(SwapStore&&) = default;

  // Takes host blocks for the sequence in `slot` and adds the copies out. The caller does not
  // change the slot until Launched(). Errors:
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
  // empty plan arms no fence.
  void Launched();

  // Cancels the plan, if its copies cannot all be launched: sequences planned out stay in their
  // slots, those planned in leave them and are stored as before. Copies of the plan that have been
  // launched do no harm: the blocks they write are not handed out before they have passed.
  void Abandon();

  // Forgets a sequence. Errors: NotFound, FailedPrecondition while it is in the plan.
  absl::Status Drop(SequenceId id);

  // Frees blocks whose copies have passed, on either side. Does not block.
  void Poll();

  // nullopt for an id that is not in the store. Polls the fences.
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
    FenceTicket written;                 // passes when the host blocks hold the content
  };

  SwapStore(BlockManager* manager, BlockPool host_pool, FenceQueueId device_queue,
            FenceQueueId host_queue);

  absl::Status CheckNotPlanned(SequenceId id, const Stored& stored) const;
  void Release(const Stored& stored, FenceTicket ticket);
  void ClearPlan();

  BlockManager* manager_;
  BlockPool host_pool_;
  FenceQueueId device_queue_;
  FenceQueueId host_queue_;
  absl::flat_hash_map<SequenceId, Stored> stored_;
  std::vector<SequenceId> planned_out_;
  std::vector<SequenceId> planned_in_;
  std::vector<BlockCopy> copies_out_;
  std::vector<BlockCopy> copies_in_;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_SWAP_STORE_H_
