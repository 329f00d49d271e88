// Which blocks hold the tokens of each sequence: the cache's books on the host.
//
// Sequences are known by their slot. The manager takes blocks from its pool as sequences grow,
// keeps a block table with a row a slot, and says what changed in it since it was last asked, so
// that whoever holds the device's copy of the table can follow.
//
//   BlockManager manager = *BlockManager::Create(
//       {.num_blocks = 1024, .block_size = 16, .num_slots = 256, .max_blocks = 512});
//   REPRISE_RETURN_IF_ERROR(manager.Add(SlotId(0), /*num_tokens=*/40));  // 3 blocks
//   REPRISE_RETURN_IF_ERROR(manager.Append(SlotId(0), 1));
//   Send(manager.TakeUpdates());  // {0, 0, 1}, {0, 1, 2}, {0, 2, 3}
//   REPRISE_RETURN_IF_ERROR(manager.Free(SlotId(0)));
//
// Look-ahead. A sequence holds blocks for num_tokens + num_lookahead_tokens, so that the device may
// write that many tokens before the host knows of them: (1 + drafts) * (steps in flight + 1).
// Look-ahead beyond the table's width is ignored. Blocks past it are given back by Truncate(),
// which the caller calls when no step in flight can write them.
//
// Errors leave everything as it was:
//   ResourceExhausted  the pool has too few blocks now; retry after other sequences have been freed
//   InvalidArgument    it never will: longer than a table row or than the whole pool; a slot or a
//                      count out of range
//   NotFound           no sequence in the slot
//   AlreadyExists      Add() to a slot that holds a sequence
//
// Thread safety: none; one owner. Cost: O(1) a call, and O(1) a block that is taken or given back;
// no heap allocation after Create(), which takes 20 bytes a block and the table.

#ifndef CACHE_BLOCK_MANAGER_H_
#define CACHE_BLOCK_MANAGER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "cache/block_pool.h"
#include "cache/block_table.h"
#include "cache/block_table_update.h"

namespace reprise {

struct BlockManagerOptions {
  int num_blocks = 0;   // in the pool, the null block included
  int block_size = 16;  // tokens a block; at least 1
  int num_slots = 0;    // sequences at a time
  int max_blocks = 0;   // of a sequence: columns of the table
  // Blocks that only Append() may take: Add() leaves them for sequences that run already.
  int num_reserved_blocks = 0;
  int num_lookahead_tokens = 0;
};

// One sequence's part of a batch: `num_tokens` more tokens.
struct SlotAppend {
  SlotId slot;
  int num_tokens = 1;
};

// Invariants, checked by CheckInvariants():
//   1. Those of the pool.
//   2. A sequence holds exactly the blocks for its tokens and look-ahead, in the first columns of
//      its row; all other entries are null blocks. Empty slots hold none.
//   3. A block's ref_count is the number of table entries that name it, and
//      free + used + 1 == num_blocks.
//   4. No block stands twice in one row.
//   5. Pending updates are the columns of a sequence that were not taken yet: a tail of its blocks.
class BlockManager {
 public:
  // Errors: InvalidArgument, naming the field.
  static absl::StatusOr<BlockManager> Create(const BlockManagerOptions& options);

  BlockManager(BlockManager&&) = default;
  BlockManager& operator=(BlockManager&&) = default;

  // Puts a sequence of `num_tokens` >= 0 tokens into an empty slot.
  absl::Status Add(SlotId slot, int num_tokens);

  // Makes room for `num_tokens` >= 0 more tokens. May use the reserve.
  absl::Status Append(SlotId slot, int num_tokens);

  // As Append() for each entry in turn, all or none. A slot may appear more than once.
  absl::Status AppendBatch(absl::Span<const SlotAppend> batch);

  // Shortens a sequence to `num_tokens` and gives back the blocks beyond them and their look-ahead.
  // For rejected drafts and tokens past a stop. Errors: InvalidArgument if it is shorter already.
  absl::Status Truncate(SlotId slot, int num_tokens);

  // Ends a sequence and gives back its blocks.
  absl::Status Free(SlotId slot);

  bool contains(SlotId slot) const;

  // REQUIRES, these two: contains(slot).
  int num_tokens(SlotId slot) const;
  // The sequence's blocks, look-ahead included. Valid until the sequence changes.
  absl::Span<const BlockId> blocks(SlotId slot) const;

  // What changed in the table since the last call: each (slot, column) at most once, so they may be
  // applied in any order; columns of a slot ascend. Nothing is reported for what was freed: entries
  // past a sequence's end are never read. Valid until the next call.
  absl::Span<const BlockTableUpdate> TakeUpdates();

  const BlockTable& table() const { return table_; }
  const BlockPool& pool() const { return pool_; }
  const BlockManagerOptions& options() const { return options_; }
  int num_sequences() const { return num_sequences_; }

  // The longest that a sequence can become by Append(): what a table row and the whole pool can
  // hold.
  int max_tokens() const;

  // Proves the invariants above; CHECK-fails with the number of the broken one. O(table),
  // allocates. For tests and debug builds.
  void CheckInvariants() const;

 private:
  struct Sequence {
    int num_tokens = 0;
    int num_blocks = 0;
    int num_taken = 0;        // first columns whose updates were taken
    bool is_live = false;     // else the slot is empty
    bool is_pending = false;  // in pending_slots_
  };

  BlockManager(const BlockManagerOptions& options, BlockPool pool, BlockTable table);

  absl::Status CheckInRange(SlotId slot) const;
  absl::Status CheckLive(SlotId slot) const;
  // Whether a sequence of `num_tokens` fits a table row and a pool with `num_kept_back` blocks
  // fewer.
  absl::Status CheckLength(SlotId slot, int64_t num_tokens, int num_kept_back) const;
  // Blocks that a sequence of `num_tokens` holds, look-ahead included.
  int BlocksFor(int64_t num_tokens) const;
  Sequence& sequence(SlotId slot) { return sequences_[slot.value()]; }
  const Sequence& sequence(SlotId slot) const { return sequences_[slot.value()]; }
  void Undo(absl::Span<const SlotAppend> appended);
  // Takes what `slot` lacks of `num_blocks`, which the pool has.
  void GrowTo(SlotId slot, int num_blocks);
  void MarkPending(SlotId slot);
  void ShrinkTo(SlotId slot, int num_blocks);

  BlockManagerOptions options_;
  BlockPool pool_;
  BlockTable table_;
  std::vector<Sequence> sequences_;  // by slot
  int num_sequences_ = 0;
  std::vector<SlotId> pending_slots_;
  std::vector<BlockTableUpdate> updates_;
};

}  // namespace reprise

#endif  // CACHE_BLOCK_MANAGER_H_
