// Host-side bookkeeping of a KV cache: the blocks that hold the tokens of each sequence.
//
// Sequences are identified by their slot. The manager allocates blocks from its pool as sequences
// grow. It keeps a block table for every group of layers (cache/kv_group.h), with one row per slot.
// It also records all changes of the tables since the last call, so that the device's tables can be
// updated.
//
//   BlockManager manager = *BlockManager::Create(
//       {.num_blocks = 1024, .block_size = 16, .num_slots = 256, .max_blocks = 512,
//        .prefix_reuse = PrefixReuse::kOn});
//   REPRISE_ASSIGN_OR_RETURN(const PromptHits hits, manager.Add(slot, {.tokens = prompt}));
//   Copy(manager.TakeCopies());          // for partial hits and copy-on-write
//   Send(manager.TakeUpdates());         // {slot, 0, 1}, {slot, 1, 2} ...
//   ...                                  // compute the prompt from token hits.num_tokens
//   REPRISE_RETURN_IF_ERROR(manager.Commit(slot, prompt_from_hits_on));
//   REPRISE_RETURN_IF_ERROR(manager.Append(slot, 1));    // allocates the next token
//   ...
//   REPRISE_RETURN_IF_ERROR(manager.Free(slot));
//
// BlockManager validates each call; SequenceBlocks (cache/blocks/sequence_blocks.h) executes it.
// docs/cache.md describes the life cycle of sequences and blocks, and the cost of each call.
//
// Allocated and committed tokens. Add() and Append() allocate tokens: num_tokens() is the number of
// tokens that may be written. Commit() reports computed tokens, in order; num_committed() is their
// number. Only committed tokens are shared, found again or released: full blocks of known tokens
// enter the prefix index (with prefix_reuse), and blocks that left the window of a group return to
// the pool. Tokens of a prefix hit are committed.
//
// Writing to shared blocks. Forks and prefix hits share blocks. If new tokens would be written to a
// shared block, Append() first replaces it with a new block, and adds a copy to TakeCopies()
// (copy-on-write). A block with no other user is written in place, and is no longer found by its
// old content.
//
// Order. Call TakeUpdates() and TakeCopies() after the calls that plan a step and before its
// launch. Run the copies before the step and after all earlier steps. On a single stream, their
// order is sufficient.
//
// Look-ahead. A sequence has blocks for num_tokens + num_lookahead_tokens, so that the device may
// write look-ahead tokens before the host has appended them. Use (1 + drafts) * (steps in flight +
// 1) look-ahead tokens. Look-ahead blocks are never shared: Fork() and Truncate() immediately
// replace shared blocks in that range, and copy their kept tokens. Look-ahead beyond the table's
// width is ignored. Truncate() releases blocks past the look-ahead; call it when no step in flight
// can write them.
//
// Errors change nothing:
//   ResourceExhausted   the pool has too few available blocks; retry after Free(), Drop(), or a
//                       Commit() that releases blocks from a window
//   InvalidArgument     the call can never succeed: the sequence exceeds a table row or the pool;
//                       a slot, a group or a count is out of range
//   FailedPrecondition  Truncate() to a length that needs blocks that left a window; a sequence
//                       whose blocks have not been filled yet (Restore)
//   NotFound            the slot is empty
//   AlreadyExists       the slot of Add(), Fork() or Restore() is not empty
//
// Thread safety: not thread-safe; one owner. Cost: O(1) per call and per token or block that is
// added, committed or released, unless documented otherwise. No heap allocation in the steady
// state: only forks, holds, prompts with range keys, and steps larger than all previous ones
// allocate.

#ifndef REPRISE_CACHE_BLOCKS_BLOCK_MANAGER_H_
#define REPRISE_CACHE_BLOCKS_BLOCK_MANAGER_H_

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/blocks/block_manager_options.h"
#include "reprise/cache/blocks/block_pool.h"
#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/cache/blocks/sequence_blocks.h"
#include "reprise/cache/blocks/sequence_content.h"
#include "reprise/cache/kv_group.h"
#include "reprise/cache/tables/block_table.h"
#include "reprise/cache/tables/block_table_update.h"

namespace reprise {

class BlockManager {
 public:
  // Errors: InvalidArgument, naming the field.
  static absl::StatusOr<BlockManager> Create(const BlockManagerOptions& options);

  BlockManager(BlockManager&&) = default;
  BlockManager& operator=(BlockManager&&) = default;

  // ---- Sequences.

  // Adds a sequence with `num_tokens` >= 0 allocated tokens to an empty slot.
  absl::Status Add(SlotId slot, int num_tokens);

  // Adds a sequence with this prompt to an empty slot: shares the longest prefix that is cached in
  // all groups, and allocates the rest. Leaves at least one token to compute.
  absl::StatusOr<PromptHits> Add(SlotId slot, const SequencePrompt& prompt);

  // Returns the hits that Add() would return for this empty slot and prompt if all blocks for the
  // rest can be allocated. Changes nothing, and does not count as a lookup. Errors: as Add(),
  // except for a lack of blocks.
  absl::StatusOr<PromptHits> Lookup(SlotId slot, const SequencePrompt& prompt);

  // Allocates `num_tokens` >= 0 more tokens. May use the reserved blocks.
  absl::Status Append(SlotId slot, int num_tokens);

  // Equivalent to Append() for each entry in order, but all or nothing. A slot may appear more than
  // once. If two sequences of the batch share their last block, one block more than needed must be
  // available.
  absl::Status AppendBatch(absl::Span<const SlotAppend> batch);

  // Reports the next tokens.size() tokens of the sequence as computed: their keys are in the cache
  // for every step launched after the steps that computed them. Errors: InvalidArgument if
  // num_committed() would exceed num_tokens().
  absl::Status Commit(SlotId slot, absl::Span<const int32_t> tokens);

  // Like Commit(), for `num_tokens` >= 0 tokens without ids, such as embeddings. Blocks of the
  // sequence from here on are not found by other sequences. With prefix_reuse off, equivalent to
  // Commit().
  absl::Status CommitUnknown(SlotId slot, int num_tokens);

  // Reports the encoder's blocks as written. If the prompt has encoder keys, other sequences can
  // find them (with prefix_reuse).
  absl::Status CommitEncoder(SlotId slot);

  // Removes the sequence's content, including its encoder content, from the prefix index, in
  // whichever blocks it is. Later commits of the sequence do not enter the index either. For
  // sequences whose keys are known to be corrupt. Other sequences that share the blocks keep them.
  // O(blocks).
  absl::Status ForgetContent(SlotId slot);

  // Adds a sequence with the committed tokens of `from` to the empty slot `to`; both share the
  // blocks. Does not use the reserved blocks. Allocates only the blocks of the look-ahead.
  absl::Status Fork(SlotId from, SlotId to);

  // Shortens a sequence to `num_tokens` and releases the blocks past its look-ahead. For rejected
  // drafts and tokens after a stop. Other sequences that share the blocks are unaffected. Errors:
  // InvalidArgument if the sequence is shorter already. FailedPrecondition if num_tokens <
  // min_tokens(). ResourceExhausted only with look-ahead, if its range has more shared blocks than
  // the pool has available after the call's own releases.
  absl::Status Truncate(SlotId slot, int num_tokens);

  // Ends a sequence and releases its blocks. Its indexed blocks can be found until the pool
  // reallocates them. To preempt a sequence, call Free(), and later Add() with its tokens.
  absl::Status Free(SlotId slot);

  // Returns OK if Save() may be called. Errors: InvalidArgument if the slot does not exist,
  // NotFound if it is empty, FailedPrecondition if the sequence is swapping in (is_swapping_in()).
  absl::Status CheckFilled(SlotId slot) const;

  // Returns the state of the committed tokens for Restore(), for stores that keep the blocks
  // elsewhere in the meantime (cache/blocks/swap_store.h). REQUIRES: CheckFilled(slot) is OK.
  // Allocates.
  SavedSequence Save(SlotId slot) const;

  // Adds a saved sequence to an empty slot, with new blocks in its previous columns. The sequence
  // is swapping in (is_swapping_in()): the caller fills the blocks. Until ConfirmRestored() or
  // AbandonRestored(), the blocks are neither read nor released. Other sequences do not find them,
  // and Fork() of the sequence, Commit(), CommitUnknown(), CommitEncoder(), ForgetContent(),
  // Truncate() and Free() return FailedPrecondition. Append() is allowed. Leaves the reserved
  // blocks free; if the sequence had grown into the reserve, uses only the reserved blocks that it
  // needs. REQUIRES: the sequence was saved by a manager with the same groups.
  absl::Status Restore(SlotId slot, const SavedSequence& saved);

  // Reports that the copies which fill the sequence's blocks run before every copy and step
  // launched from now on. The sequence is then restored, and its full blocks of known tokens enter
  // the prefix index. REQUIRES: is_swapping_in(slot).
  void ConfirmRestored(SlotId slot);

  // Removes a sequence that is swapping in from its slot. If a copy may still write a block, the
  // caller must hold the block until the copy has completed. REQUIRES: is_swapping_in(slot).
  void AbandonRestored(SlotId slot);

  // ---- Holds, for copies that access blocks after their sequence has left its slot.

  // Adds a reference that belongs to no slot. Until Drop(), the block is not reallocated, and the
  // committed tokens in it are not overwritten. A block may have several holds. REQUIRES: `block`
  // is in use or cached.
  void Hold(BlockId block) { sequences_.Hold(block); }

  // Removes one hold. Drop a child block before its parent, so that the child is evicted first.
  // REQUIRES: `block` has a hold.
  void Drop(BlockId block) { sequences_.Drop(block); }

  int num_holds(BlockId block) const { return sequences_.num_holds(block); }

  // ---- For the device.

  // Returns the changes of the tables since the last call. Each (group, slot, column) occurs at
  // most once, so the changes may be applied in any order. The columns of a row are in ascending
  // order. A block that left a window is reported as a null block. Blocks released at a row's end
  // are not reported: entries past a sequence's end are never read, and the owner of the device's
  // table must clear the row of a slot that ends. Valid until the next call.
  absl::Span<const BlockTableUpdate> TakeUpdates() { return sequences_.tables().TakeUpdates(); }

  // Returns the block copies, over all layers, to run before the next step. Destinations are
  // distinct, and no destination is a source, so the copies may run in any order. The next step may
  // already overwrite the sources. Valid until the next call.
  absl::Span<const BlockCopy> TakeCopies() { return sequences_.TakeCopies(); }
  bool has_copies() const { return !sequences_.copies().empty(); }
  // Returns the block that currently holds the content of `block`: the source of the pending copy
  // to `block`, or `block` itself.
  BlockId OriginOf(BlockId block) const { return sequences_.copies().Origin(block); }

  // Writes the sequence's row of a group to `row`, padded with null blocks, for callers that keep
  // their own tables. Errors: InvalidArgument if the group does not exist, or if `row` is too
  // short.
  absl::Status WriteRow(SlotId slot, int group, absl::Span<int32_t> row) const;

  // ---- State.

  bool contains(SlotId slot) const;

  // REQUIRES, for the accessors up to first_column(): contains(slot), and the group exists.

  // Whether the sequence is swapping in: its blocks have not been filled yet, from Restore() to
  // ConfirmRestored().
  bool is_swapping_in(SlotId slot) const { return live(slot).is_swapping_in; }
  int num_tokens(SlotId slot) const { return live(slot).num_tokens; }
  int num_committed(SlotId slot) const { return live(slot).num_committed; }
  int num_encoder_tokens(SlotId slot) const { return live(slot).num_encoder_tokens; }
  // Whether the encoder's blocks have been written: Add() found them, or CommitEncoder() was
  // called.
  bool has_encoder(SlotId slot) const { return live(slot).has_encoder; }
  // Smallest length that Truncate() accepts.
  int min_tokens(SlotId slot) const;
  // The sequence's blocks by column, including look-ahead blocks, with null blocks in columns that
  // have left the window. Valid until the sequence changes.
  absl::Span<const BlockId> blocks(SlotId slot, int group = 0) const;
  // The first column of `blocks` that is not a null block; blocks.size() if there is none.
  int first_column(SlotId slot, int group) const;

  const BlockTable& table(int group = 0) const { return sequences_.tables().table(group); }
  const BlockPool& pool() const { return sequences_.pool(); }
  const PrefixCache& prefix_cache() const { return sequences_.cache(); }
  const BlockManagerOptions& options() const { return sequences_.options(); }
  absl::Span<const KvGroupSpec> groups() const { return options().groups; }
  int num_groups() const { return sequences_.num_groups(); }
  int num_sequences() const { return sequences_.num_sequences(); }

  // Number of blocks over all groups, including look-ahead, of a sequence with `num_tokens` tokens,
  // `num_committed` of them committed, if it shares no block. A cross group has the blocks of
  // `num_encoder_tokens`.
  int64_t NumBlocksFor(int num_tokens, int num_committed, int num_encoder_tokens = 0) const {
    return sequences_.NumBlocksFor(num_tokens, num_committed, num_encoder_tokens);
  }

  // Maximum length to which Append() can extend a sequence with `num_encoder_tokens`, if at most
  // `num_uncommitted` of its tokens are uncommitted at any time. Limited by the table row and the
  // whole pool. Searches, so call it once: O(groups * log(tokens per row)); with windows and a
  // bound on uncommitted tokens, O(groups * tokens per row).
  int max_tokens(int num_uncommitted = std::numeric_limits<int>::max(),
                 int num_encoder_tokens = 0) const;

  // ---- The prefix index.

  PrefixEvents TakePrefixEvents() { return sequences_.cache().TakeEvents(); }
  // Removes all content computed so far from the prefix index, for example after the weights have
  // changed. O(num_blocks + num_slots).
  void ForgetPrefixes() { sequences_.ForgetAll(); }

  // Checks the invariants of SequenceBlocks. CHECK-fails with the number of the violated invariant.
  // O(table), allocates. For tests and debug builds.
  void CheckInvariants() const { sequences_.CheckInvariants(); }

 private:
  // The result of Add()'s lookup. hits() has the blocks; in cross groups, the encoder's blocks.
  struct Found {
    int num_blocks = 0;          // full blocks of the hit, cached in every group
    int num_partial_tokens = 0;  // tokens to copy from the next block
    bool has_encoder = false;
  };

  explicit BlockManager(SequenceBlocks sequences);

  const SequenceBlocks::Sequence& live(SlotId slot) const;
  int num_reserved() const { return options().num_reserved_blocks; }

  absl::Status CheckInRange(SlotId slot) const;
  absl::Status CheckEmpty(SlotId slot) const;
  absl::Status CheckLive(SlotId slot) const;
  // Returns OK if a table row, and the pool without `num_kept_back` blocks, can ever hold
  // `num_tokens`.
  absl::Status CheckLength(SlotId slot, int64_t num_tokens, int num_committed,
                           int num_encoder_tokens, int num_kept_back) const;
  absl::Status CheckCommit(SlotId slot, int64_t num_tokens) const;
  absl::Status CheckAppend(SlotId slot, int num_tokens) const;
  // Returns OK if the pool has the blocks that Truncate() with look-ahead needs, including the
  // blocks it releases.
  absl::Status CheckTruncation(SlotId slot, int num_tokens, int num_columns) const;
  absl::Status CheckPrompt(SlotId slot, const SequencePrompt& prompt) const;

  Found Find(SlotId slot, const SequencePrompt& prompt);
  int FindPartial(SlotId slot, absl::Span<const int32_t> tokens, int num_blocks);
  bool FindEncoder(SlotId slot, int num_encoder_tokens);
  // Shares the found blocks and allocates the rest.
  absl::StatusOr<PromptHits> AddFound(SlotId slot, const SequencePrompt& prompt,
                                      const Found& found);
  absl::Span<BlockId> hits(int group) {
    return absl::MakeSpan(hits_).subspan(static_cast<size_t>(group) * options().max_blocks,
                                         options().max_blocks);
  }

  // Whether `num_tokens` more tokens need no new block, only a new count.
  bool HasRoom(SlotId slot, int num_tokens) const;
  void Undo(absl::Span<const SlotAppend> appended);

  SequenceBlocks sequences_;
  // Scratch of Add().
  std::vector<BlockId> hits_;  // [groups, max_blocks]
  std::vector<BlockId> shared_;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_BLOCK_MANAGER_H_
