// The blocks of the sequence in each slot: its table rows in every group of layers, its lengths,
// its committed tokens with their hashes, and the references to all blocks.
//
// The part of BlockManager (cache/blocks/block_manager.h) that executes validated calls. Functions
// return no errors: the caller has checked the slot, the lengths, and that the pool has the blocks
// that a call allocates.
//
//   sequences.Start(slot).num_tokens = 20;
//   sequences.GrowTo(slot, sequences.NumColumns(20));
//   sequences.Commit(slot, tokens);         // indexes full blocks, shrinks windows
//   sequences.End(slot);
//
// Column i of a row is the block of token positions [i * block_size, (i + 1) * block_size). A
// sequence has the columns of its tokens and its look-ahead. In cross groups, it has the columns of
// the encoder's tokens.
//
// A block has one reference for each table entry, each pending copy from it, and each hold.
// MakeOwn() replaces blocks that have another user, and adds copies of their content.
//
// Thread safety: not thread-safe; one owner. Cost: O(1) per block that is added, released or
// indexed, unless stated otherwise. No heap allocation in the steady state, except for forks and
// holds.

#ifndef REPRISE_CACHE_BLOCKS_SEQUENCE_BLOCKS_H_
#define REPRISE_CACHE_BLOCKS_SEQUENCE_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/blocks/block_manager_options.h"
#include "reprise/cache/blocks/block_pool.h"
#include "reprise/cache/blocks/group_tables.h"
#include "reprise/cache/blocks/pending_copies.h"
#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/cache/blocks/sequence_content.h"
#include "reprise/cache/prefix/prefix_index.h"

namespace reprise {

// Invariants, checked by CheckInvariants():
//   1. The invariants of the pool, the index and the tables.
//   2. In each group, a sequence has a block in every column of its tokens and its look-ahead,
//      except in columns that have left the group's window as of its committed tokens. In cross
//      groups it has a block in every column of the encoder's tokens. Empty slots have no blocks.
//   3. A block's ref_count is the number of its table entries, of pending copies from it, and of
//      its holds.
//   4. Look-ahead blocks, which the device may write without a further append, have one table entry
//      and are not in the index.
//   5. 0 <= num_committed <= num_tokens.
//   6. Blocks of sequences that are swapping in have one table entry, no pending copy, and are not
//      in the index.
class SequenceBlocks {
 public:
  struct Sequence {
    int num_tokens = 0;
    int num_committed = 0;
    // Maximum num_tokens without a new column.
    int num_tokens_with_columns = 0;
    int num_encoder_tokens = 0;
    bool has_encoder = false;     // the encoder's blocks have been written
    bool is_live = false;         // false: the slot is empty
    bool is_swapping_in = false;  // swapping in: restored, but its blocks have not been filled yet
    // Whether the tokens after num_tokens may fall into blocks that have other users or are in the
    // index. Always false with look-ahead.
    bool may_share_tail = false;
    // Set while BlockManager plans a batch: the blocks of tokens from num_tokens_planned_from will
    // be replaced by MakeOwn().
    bool is_tail_planned = false;
    int num_tokens_planned_from = 0;
  };

  // Errors: InvalidArgument, naming the field. REQUIRES: CheckGroups(options.groups) is OK,
  // block_size >= 1, num_lookahead_tokens >= 0.
  static absl::StatusOr<SequenceBlocks> Create(const BlockManagerOptions& options);

  SequenceBlocks(SequenceBlocks&&) = default;
  SequenceBlocks& operator=(SequenceBlocks&&) = default;

  // ---- Arithmetic.

  // Number of columns of a sequence of `num_tokens`, including look-ahead. Not for cross groups.
  int NumColumns(int64_t num_tokens) const;

  // Number of blocks over all groups, including look-ahead, of a sequence that shares no block.
  int64_t NumBlocksFor(int num_tokens, int num_committed, int num_encoder_tokens = 0) const;

  // Number of blocks that Load() allocates. REQUIRES: saved with the same groups.
  int64_t NumBlocksToLoad(const SavedSequence& saved) const;

  // ---- State. REQUIRES: the slot exists.

  Sequence& operator[](SlotId slot) { return sequences_[slot.value()]; }
  const Sequence& operator[](SlotId slot) const { return sequences_[slot.value()]; }

  // The smallest number of tokens for which every group still has its blocks.
  int min_tokens(SlotId slot) const;

  int num_sequences() const { return num_sequences_; }
  // Number of groups that are not cross groups.
  int num_own_groups() const { return num_own_groups_; }
  // Whether a group releases blocks as a sequence grows.
  bool has_windows() const { return has_windows_; }
  const BlockManagerOptions& options() const { return options_; }
  int num_groups() const { return static_cast<int>(options_.groups.size()); }
  const BlockPool& pool() const { return cache_.pool(); }
  const PrefixCache& cache() const { return cache_; }
  PrefixCache& cache() { return cache_; }
  const GroupTables& tables() const { return tables_; }
  GroupTables& tables() { return tables_; }
  SequenceContent& content() { return content_; }
  const PendingCopies& copies() const { return copies_; }

  // ---- Rows.

  // Adds a sequence without blocks to an empty slot.
  Sequence& Start(SlotId slot);

  // Fills columns [first, end) of a group's empty row: first with `hits`, whose references pass to
  // the row, then with new blocks.
  void FillRow(SlotId slot, int group, int first, absl::Span<const BlockId> hits, int end);

  // Adds missing columns up to `num_columns` in all groups that hold the sequence's tokens.
  void GrowTo(SlotId slot, int num_columns);

  // Releases all columns from `num_columns`, starting with the last column.
  void ShrinkTo(SlotId slot, int num_columns);

  // Starts a sequence in `to` with the committed tokens of `from`. Both share the blocks.
  void Fork(SlotId from, SlotId to);

  // Starts a sequence that is swapping in, with new blocks in its previous columns.
  void Load(SlotId slot, const SavedSequence& saved);

  // Returns the state of the committed tokens, for Load().
  SavedSequence Save(SlotId slot) const;

  // Releases all blocks of the sequence, the last one first, and empties the slot.
  void End(SlotId slot);

  // ---- Shared blocks.

  // Number of blocks before `end_column` that MakeOwn(slot, num_kept) would replace.
  int NumToCopy(SlotId slot, int num_kept, int end_column) const;

  // Number of blocks that ShrinkTo(slot, end_column) returns to the pool.
  int NumFreedBeyond(SlotId slot, int end_column) const;

  // Replaces each shared block that holds a token position >= `num_kept` with a new block, which
  // gets a copy of the block's kept tokens, if any. Unshared blocks there leave the index.
  void MakeOwn(SlotId slot, int num_kept);

  // Adds a pending copy. The caller's reference to `source` passes to the copy.
  void AddCopy(BlockId source, BlockId destination);

  // As in BlockManager.
  absl::Span<const BlockCopy> TakeCopies();
  void Hold(BlockId block);
  void Drop(BlockId block);
  int num_holds(BlockId block) const;

  // ---- Content.

  // Marks the next tokens as computed. Full blocks of known tokens enter the index, and blocks that
  // left a window are released.
  void Commit(SlotId slot, absl::Span<const int32_t> tokens);

  // Like Commit(), for tokens without ids: no further block of the sequence enters the index.
  void CommitUnknown(SlotId slot, int num_tokens);

  // Marks the encoder's blocks as written. They enter the index if the input has a key.
  void CommitEncoder(SlotId slot);

  // Marks the blocks of a sequence that is swapping in as filled. Full blocks of known tokens enter
  // the index.
  void ConfirmLoaded(SlotId slot);

  // Removes the sequence's content from the index, and keeps later commits out of it.
  void Forget(SlotId slot);

  // Removes all content from the index, including the content of sequences that were saved before.
  void ForgetAll();

  // Calls `visit` with the key of each block of the encoder's input. Makes no call if the input has
  // no key.
  void ForEachEncoderKey(SlotId slot, int num_encoder_tokens,
                         absl::FunctionRef<void(int column, const PrefixKey& key)> visit);

  // Checks the invariants above. CHECK-fails with the number of the violated invariant. O(table),
  // allocates. For tests and debug builds.
  void CheckInvariants() const;

 private:
  SequenceBlocks(const BlockManagerOptions& options, PrefixCache cache, GroupTables tables,
                 SequenceContent content);

  int TokensWithColumns(int num_columns) const;
  int EndOfRow(const SavedSequence& saved, int group) const;
  bool IsOnlyUser(BlockId block) const;
  // REQUIRES: the pool has the blocks; the caller has also checked whether the reserve may be used.
  void AllocatePlanned(absl::Span<BlockId> blocks);
  void Release(BlockId block);
  void Index(SlotId slot, int first_column, int end_column);
  void IndexEncoder(SlotId slot);
  // Adds `num_tokens` to the committed tokens and releases the blocks that left the windows.
  void Advance(SlotId slot, int num_tokens);
  void CheckRow(SlotId slot, int group) const;
  void CheckLookAhead(SlotId slot, absl::Span<const int> num_references) const;
  void CheckSwappingIn(SlotId slot) const;

  BlockManagerOptions options_;
  int num_own_groups_ = 0;
  bool has_windows_ = false;
  PrefixCache cache_;
  GroupTables tables_;
  SequenceContent content_;
  PendingCopies copies_;
  absl::flat_hash_map<BlockId, int> holds_;  // number of holds of each held block
  std::vector<Sequence> sequences_;          // by slot
  int num_sequences_ = 0;
  int64_t num_forgets_ = 0;
  std::vector<int32_t> encoder_tokens_;  // scratch of ForEachEncoderKey(), [block_size]
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_SEQUENCE_BLOCKS_H_
