// The blocks that hold the tokens of each sequence: the bookkeeping of the cache on the host.
//
// Sequences are identified by their slot. The manager takes blocks from its pool as sequences grow,
// keeps a block table with a row a slot for every group of layers (cache/kv_group.h), and lists the
// changes of the tables since the last call, so that the device's copies can be updated.
//
//   BlockManager manager = *BlockManager::Create(
//       {.num_blocks = 1024, .block_size = 16, .num_slots = 256, .max_blocks = 512,
//        .prefix_reuse = PrefixReuse::kOn});
//   REPRISE_ASSIGN_OR_RETURN(const PromptHits hits, manager.Add(slot, {.tokens = prompt}));
//   Copy(manager.TakeCopies());          // of blocks that a hit ends within, or a fork writes to
//   Send(manager.TakeUpdates());         // {slot, 0, 1}, {slot, 1, 2} ...
//   ...                                  // compute the prompt from hits.num_tokens on, and then
//   REPRISE_RETURN_IF_ERROR(manager.Commit(slot, prompt_from_hits_on));
//   REPRISE_RETURN_IF_ERROR(manager.Append(slot, 1));    // room for the next token
//   ...
//   REPRISE_RETURN_IF_ERROR(manager.Free(slot));
//
// The manager decides what a call may do; SequenceBlocks (cache/blocks/sequence_blocks.h) carries it
// out. The whole life of a sequence and of a block, with the cost of each call: docs/cache.md.
//
// Room and content. Add() and Append() make room: num_tokens() counts the tokens that may be
// written. Commit() reports tokens that have been computed, in order: num_committed() of them. Only
// committed tokens are shared, found again or released: full blocks enter the prefix index, and
// blocks that left the window of a group return to the pool. Tokens of a prefix hit are committed.
//
// Writing to shared blocks. Forks and prefix hits share blocks. If new tokens would be written to a
// shared block, Append() first replaces it by a block of the sequence's own, and adds a copy to
// TakeCopies(). Blocks that only the sequence itself uses are written in place, and are no longer
// found by their old content.
//
// Order. Take updates and copies after the calls that plan a step and before it is launched. Run
// the copies before the step and after all earlier steps; on one stream their order is enough.
//
// Look-ahead. A sequence holds blocks for num_tokens + num_lookahead_tokens, so that the device may
// write that many tokens before the host knows of them: (1 + drafts) * (steps in flight + 1). These
// blocks are never shared: with look-ahead, Fork() and Truncate() copy shared blocks there at once.
// Look-ahead beyond the table's width is ignored. Truncate() releases blocks past the look-ahead;
// call it when no step in flight can write them.
//
// Errors change nothing:
//   ResourceExhausted   the pool has too few blocks now; retry after other sequences have been
//                       freed, holds dropped, or tokens committed that leave a window
//   InvalidArgument     the call can never succeed: longer than a table row or than the whole pool;
//                       a slot, a group or a count out of range
//   FailedPrecondition  Truncate() to a length that needs blocks that left a window; a sequence
//                       whose blocks are still to be filled (Restore)
//   NotFound            no sequence in the slot
//   AlreadyExists       Add() or Fork() to a slot that holds a sequence
//
// Thread safety: none; one owner. Cost: O(1) a call, and O(1) a token or block that is added,
// committed or released, unless a call is documented otherwise; no heap allocation in the steady
// state (only forks, prompts with extra keys and steps larger than all before allocate).

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

  // Puts a sequence into an empty slot, with room for `num_tokens` >= 0 tokens.
  absl::Status Add(SlotId slot, int num_tokens);

  // Puts a sequence with this prompt into an empty slot: shares the part of it that is in the cache
  // in all groups, and makes room for the rest. At least one token is left to compute.
  absl::StatusOr<PromptHits> Add(SlotId slot, const SequencePrompt& prompt);

  // What Add() of the prompt to this empty slot would find now, if it finds the blocks for the
  // rest; changes nothing, and does not count as a lookup. Errors: those of Add() but for the lack
  // of blocks.
  absl::StatusOr<PromptHits> Lookup(SlotId slot, const SequencePrompt& prompt);

  // Makes room for `num_tokens` >= 0 more tokens. May use the reserve.
  absl::Status Append(SlotId slot, int num_tokens);

  // As Append() for each entry in turn, all or none. A slot may appear more than once. (If two
  // sequences of the batch share their last block, one block more than needed must be available.)
  absl::Status AppendBatch(absl::Span<const SlotAppend> batch);

  // Reports the next tokens.size() tokens of the sequence as computed: their keys are in the cache
  // for every step launched after those that computed them.
  // Errors: InvalidArgument if there would be more than num_tokens().
  absl::Status Commit(SlotId slot, absl::Span<const int32_t> tokens);

  // As Commit() of `num_tokens` >= 0 tokens without ids, such as embeddings: others do not find the
  // sequence's blocks from here on. With prefix_reuse off both are the same.
  absl::Status CommitUnknown(SlotId slot, int num_tokens);

  // Reports the encoder's blocks as written: with encoder keys, other sequences find them.
  absl::Status CommitEncoder(SlotId slot);

  // Neither what the sequence has committed, its encoder's input included, nor what it commits from
  // now on is found any more, in whichever blocks it is: for keys that turned out to be broken.
  // Other sequences that share its blocks keep them. O(blocks).
  absl::Status ForgetContent(SlotId slot);

  // Puts into the empty slot `to` a sequence with the committed tokens of `from`, sharing their
  // blocks. Does not use the reserve; needs blocks for the look-ahead only.
  absl::Status Fork(SlotId from, SlotId to);

  // Shortens a sequence to `num_tokens` and releases the blocks beyond them and their look-ahead.
  // For rejected drafts and tokens past a stop. A truncation into shared blocks shortens this
  // sequence only. Errors: InvalidArgument if it is shorter already; FailedPrecondition below
  // min_tokens(); ResourceExhausted only with look-ahead, if its range has more shared blocks than
  // the pool has and the call itself releases.
  absl::Status Truncate(SlotId slot, int num_tokens);

  // Ends a sequence and releases its blocks. Its committed blocks are found again until the pool
  // reuses them: to preempt a sequence, free it, and Add() its tokens again later.
  absl::Status Free(SlotId slot);

  // Whether Save() may be called. Errors: InvalidArgument if there is no such slot, NotFound if it
  // holds no sequence, FailedPrecondition if the sequence is arriving.
  absl::Status CheckFilled(SlotId slot) const;

  // The state of the sequence's committed tokens that Restore() needs, for stores that keep its
  // blocks elsewhere meanwhile (cache/blocks/swap_store.h). REQUIRES: CheckFilled(slot) is OK.
  // Allocates.
  SavedSequence Save(SlotId slot) const;

  // Puts a saved sequence into an empty slot, with blocks of its own in the columns that it had. It
  // is arriving: the caller fills the blocks. Until ConfirmRestored() they are neither read nor
  // released: others do not find them, and Fork() of the sequence, Commit(), CommitUnknown(),
  // CommitEncoder(), Truncate() and Free() are refused with FailedPrecondition. Append() may make
  // room. Keeps the reserve free. If Append() let the sequence grow into the reserve, it keeps only
  // the reserved blocks that the sequence does not need. REQUIRES: saved by a manager with the same
  // groups.
  absl::Status Restore(SlotId slot, const SavedSequence& saved);

  // Reports that the copies that fill an arriving sequence run before every copy and step launched
  // from now on: the sequence is as it was when it was saved, and others find it.
  // REQUIRES: is_arriving(slot).
  void ConfirmRestored(SlotId slot);

  // Removes an arriving sequence from its slot. If a copy may still write a block, the caller holds
  // the block until the copy has ended. REQUIRES: is_arriving(slot).
  void AbandonRestored(SlotId slot);

  // ---- Holds, for copies that read or write blocks after their sequence has left its slot.

  // Adds a reference that no slot has. Until Drop() the block is not handed out, and the tokens that
  // are committed in it are not overwritten. A block may have several holds.
  // REQUIRES: `block` is in use or cached.
  void Hold(BlockId block) { sequences_.Hold(block); }

  // Removes one hold. Drop a child before its parent, so that the child is evicted first.
  // REQUIRES: num_holds(block) > 0.
  void Drop(BlockId block) { sequences_.Drop(block); }

  int num_holds(BlockId block) const { return sequences_.num_holds(block); }

  // ---- For the device.

  // The changes of the tables since the last call: each (group, slot, column) at most once, so they
  // may be applied in any order; columns of a row ascend. Released blocks are not reported: entries
  // past a sequence's end are never read, and the owner of a copy clears a slot that leaves. Valid
  // until the next call.
  absl::Span<const BlockTableUpdate> TakeUpdates() { return sequences_.tables().TakeUpdates(); }

  // Blocks to be copied, over all layers, before the next step: distinct destinations, none of them
  // a source, so they may run in any order. The sources may change from the next step on. Valid
  // until the next call.
  absl::Span<const BlockCopy> TakeCopies() { return sequences_.TakeCopies(); }
  bool has_copies() const { return !sequences_.copies().empty(); }
  // Where the content of `block` is until they have run: the source of the copy to it, else itself.
  BlockId OriginOf(BlockId block) const { return sequences_.copies().Origin(block); }

  // Writes the sequence's row of a group, null blocks up to row.size(), for callers with tables of
  // their own. Errors: InvalidArgument if the group does not exist, or the row is too short.
  absl::Status WriteRow(SlotId slot, int group, absl::Span<int32_t> row) const;

  // ---- State.

  bool contains(SlotId slot) const;

  // REQUIRES: contains(slot), and the group exists, for all of these.
  // Whether its blocks are not filled yet: from Restore() to ConfirmRestored().
  bool is_arriving(SlotId slot) const { return live(slot).is_arriving; }
  int num_tokens(SlotId slot) const { return live(slot).num_tokens; }
  int num_committed(SlotId slot) const { return live(slot).num_committed; }
  int num_encoder_tokens(SlotId slot) const { return live(slot).num_encoder_tokens; }
  // Whether the encoder's blocks are known to be written: found by Add(), or CommitEncoder().
  bool has_encoder(SlotId slot) const { return live(slot).has_encoder; }
  // The shortest that Truncate() may make the sequence.
  int min_tokens(SlotId slot) const;
  // The sequence's blocks, look-ahead included, null blocks where they left the window. Valid until
  // the sequence changes.
  absl::Span<const BlockId> blocks(SlotId slot, int group = 0) const;
  // The first column of `blocks` that is not a null block.
  int first_column(SlotId slot, int group) const;

  const BlockTable& table(int group = 0) const { return sequences_.tables().table(group); }
  const BlockPool& pool() const { return sequences_.pool(); }
  const PrefixCache& prefix_cache() const { return sequences_.cache(); }
  const BlockManagerOptions& options() const { return sequences_.options(); }
  absl::Span<const KvGroupSpec> groups() const { return options().groups; }
  int num_groups() const { return sequences_.num_groups(); }
  int num_sequences() const { return sequences_.num_sequences(); }

  // The blocks that a sequence of `num_tokens`, `num_committed` of them committed, holds over all
  // groups, if it shares none. Of a cross group those of `num_encoder_tokens`.
  int64_t NumBlocksFor(int num_tokens, int num_committed, int num_encoder_tokens = 0) const {
    return sequences_.NumBlocksFor(num_tokens, num_committed, num_encoder_tokens);
  }

  // The longest that a sequence with `num_encoder_tokens` can become by Append(), if never more
  // than `num_uncommitted` of its tokens are not committed: the limit of a table row and the whole
  // pool. Searches, so call it once: O(groups * log(tokens of a row)), and with windows and a bound
  // on uncommitted tokens O(groups * tokens of a row).
  int max_tokens(int num_uncommitted = std::numeric_limits<int>::max(),
                 int num_encoder_tokens = 0) const;

  // ---- The prefix index.

  PrefixEvents TakePrefixEvents() { return sequences_.cache().TakeEvents(); }
  // Forgets all content that was computed so far: for weights that have changed. O(num_blocks +
  // num_slots).
  void ForgetPrefixes() { sequences_.ForgetAll(); }

  // Proves the invariants of SequenceBlocks; CHECK-fails with the number of the broken one.
  // O(table), allocates. For tests and debug builds.
  void CheckInvariants() const { sequences_.CheckInvariants(); }

 private:
  // The result of Add()'s lookup; hits() are its blocks, in cross groups those of the encoder.
  struct Found {
    int num_blocks = 0;          // full blocks that every group has
    int num_partial_tokens = 0;  // tokens to copy from the block after them
    bool has_encoder = false;
  };

  explicit BlockManager(SequenceBlocks sequences);

  const SequenceBlocks::Sequence& live(SlotId slot) const;
  int num_reserved() const { return options().num_reserved_blocks; }

  absl::Status CheckInRange(SlotId slot) const;
  absl::Status CheckEmpty(SlotId slot) const;
  absl::Status CheckLive(SlotId slot) const;
  // Whether a table row and the pool without `num_kept_back` blocks can ever hold `num_tokens`.
  absl::Status CheckLength(SlotId slot, int64_t num_tokens, int num_committed,
                           int num_encoder_tokens, int num_kept_back) const;
  absl::Status CheckCommit(SlotId slot, int64_t num_tokens) const;
  absl::Status CheckAppend(SlotId slot, int num_tokens) const;
  // Whether the pool has the blocks that Truncate() with look-ahead needs, after those that it
  // releases.
  absl::Status CheckTruncation(SlotId slot, int num_tokens, int num_columns) const;
  absl::Status CheckPrompt(SlotId slot, const SequencePrompt& prompt) const;

  Found Find(SlotId slot, const SequencePrompt& prompt);
  int FindPartial(SlotId slot, absl::Span<const int32_t> tokens, int num_blocks);
  bool FindEncoder(SlotId slot, int num_encoder_tokens);
  // Shares the blocks that were found, and makes room for the rest.
  absl::StatusOr<PromptHits> AddFound(SlotId slot, const SequencePrompt& prompt,
                                      const Found& found);
  absl::Span<BlockId> hits(int group) {
    return absl::MakeSpan(hits_).subspan(static_cast<size_t>(group) * options().max_blocks,
                                         options().max_blocks);
  }

  // Whether this many more tokens need only a new count, and no block.
  bool HasRoom(SlotId slot, int num_tokens) const;
  void Undo(absl::Span<const SlotAppend> appended);

  SequenceBlocks sequences_;
  // Scratch of Add().
  std::vector<BlockId> hits_;  // [groups, max_blocks]
  std::vector<BlockId> shared_;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_BLOCK_MANAGER_H_
