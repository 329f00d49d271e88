// Sequences that gave up their blocks on the device and keep what they hold in host memory, to come
// back to any slot with the same tokens, bit for bit: the books. The bytes are KvSwapper's
// (cache/kv_swapper.h).
//
//   // Fences over swapper->stream(), base/cuda_fence.h.
//   SwapStore store = *SwapStore::Create({.num_host_blocks = 4096}, &manager, std::move(fences));
//   REPRISE_RETURN_IF_ERROR(store.PlanOut(slot, id));     // nothing has moved yet
//   REPRISE_RETURN_IF_ERROR(store.PlanIn(other_id, other_slot));
//   REPRISE_ASSIGN_OR_RETURN(SwapTicket out, swapper->SwapOut(store.copies_out()));
//   REPRISE_ASSIGN_OR_RETURN(SwapTicket in, swapper->SwapIn(store.copies_in()));
//   REPRISE_RETURN_IF_ERROR(swapper->Await(in));          // the next step waits for what came in
//   store.Launched();                                     // `slot` is empty from here on
//
// One swap stream carries all copies, both ways, in the order of the calls. Events go both ways:
// the swap stream waits for the steps that wrote what goes out and that used the blocks which come
// in; a step waits for what came in before it. A step does not wait for what goes out: blocks that
// are being read are fenced, and no one gets them before the copy has passed.
//
// Host blocks have ids of their own, 1 to num_host_blocks - 1; host block 0 is never used.
//
//   state      the sequence's blocks                          leaves by
//   (none)     on the device, in its slot                     PlanOut -> planned
//   planned    on the device; host blocks are taken           Launched -> leaving
//   leaving    device blocks fenced, host blocks being        the copy passes -> stored;
//              written                                        PlanIn, Drop
//   stored     on the host                                    PlanIn -> (none), host blocks fenced
//                                                             until read; Drop -> (none)
//
// Only committed tokens go out (BlockManager::Commit): what is in flight is computed anew.
//
// Errors leave everything as it was. Thread safety: none; one owner. Ownership: the manager
// outlives the store, the fences are the store's. Cost: O(1) a block; allocates, as swaps are rare.

#ifndef CACHE_SWAP_STORE_H_
#define CACHE_SWAP_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/fence.h"
#include "base/ids.h"
#include "cache/block_copy.h"
#include "cache/block_manager.h"
#include "cache/block_pool.h"

namespace reprise {

// A block of host memory, of the size of a device block over all layers.
using HostBlockId = StrongId<struct HostBlockIdTag, int32_t>;

struct SwapStoreOptions {
  int num_host_blocks = 0;  // the null block included; at least 2
};

enum class SwapState : int8_t { kPlanned, kLeaving, kStored };

std::ostream& operator<<(std::ostream& out, SwapState state);

// Fences of the swap stream, for the blocks of either side; at least two each, one more than the
// swaps that may be under way at a time is enough.
struct SwapFences {
  std::vector<std::unique_ptr<Fence>> device;
  std::vector<std::unique_ptr<Fence>> host;
};

// Invariants, checked by CheckInvariants():
//   1. Those of the pool of host blocks.
//   2. Every stored sequence has its own host blocks: each one's ref_count is 1, and no others are
//      used but those of planned swaps in.
//   3. A planned sequence is in its slot, with the tokens it had.
class SwapStore {
 public:
  // Errors: InvalidArgument, naming the option or the fences.
  static absl::StatusOr<SwapStore> Create(const SwapStoreOptions& options, BlockManager* manager,
                                          SwapFences fences);

  SwapStore(SwapStore&&) = default;
  SwapStore& operator=(SwapStore&&) = default;

  // Takes host blocks for the sequence in `slot` and adds the copies out. The caller leaves the
  // slot alone until Launched(). Errors:
  //   NotFound, InvalidArgument  no sequence in the slot, no such slot
  //   AlreadyExists              the id is in the store
  //   FailedPrecondition         the slot is in the plan already; the plan has swaps in, which run
  //                              after those out; the manager has copies pending
  //   ResourceExhausted          too few host blocks now; retry after others came back
  //   InvalidArgument            more than all host blocks
  absl::Status PlanOut(SlotId slot, SequenceId id);

  // Gives a stored sequence device blocks in an empty slot and adds the copies in: from the next
  // step on it is as it was when it left. Errors: NotFound for an id that is not in the store,
  // FailedPrecondition for one that is only planned to leave, and those of BlockManager::Restore().
  absl::Status PlanIn(SequenceId id, SlotId slot);

  // The copies of the plan: src and dst are a device block and a host block, or the other way
  // round. Valid until the plan changes.
  absl::Span<const BlockCopy> copies_out() const { return copies_out_; }
  absl::Span<const BlockCopy> copies_in() const { return copies_in_; }

  // All copies of the plan have been launched on the swap stream, those out before those in: the
  // planned slots become empty. An empty plan arms nothing.
  void Launched();

  // Forgets a sequence. Errors: NotFound, FailedPrecondition while it is planned to leave.
  absl::Status Drop(SequenceId id);

  // Lets blocks go whose copies have passed, on either side. Does not block.
  void Poll();

  // Nothing for an id that is not here. Asks the fences.
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
    FenceTicket written;                 // passes when the host blocks hold the content
  };

  SwapStore(BlockManager* manager, BlockPool host_pool, FenceQueueId device_queue,
            FenceQueueId host_queue);

  BlockManager* manager_;
  BlockPool host_pool_;
  FenceQueueId device_queue_;
  FenceQueueId host_queue_;
  absl::flat_hash_map<SequenceId, Stored> stored_;
  std::vector<SequenceId> planned_out_;
  std::vector<HostBlockId> read_;  // host blocks of planned swaps in
  std::vector<BlockCopy> copies_out_;
  std::vector<BlockCopy> copies_in_;
};

}  // namespace reprise

#endif  // CACHE_SWAP_STORE_H_
