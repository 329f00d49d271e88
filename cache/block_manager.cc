#include "cache/block_manager.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace reprise {

absl::StatusOr<BlockManager> BlockManager::Create(const BlockManagerOptions& options) {
  if (options.block_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_size must be positive: expected at least 1, got ", options.block_size));
  }
  if (options.num_lookahead_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_lookahead_tokens must not be negative: expected at least 0, got ",
                     options.num_lookahead_tokens));
  }
  REPRISE_ASSIGN_OR_RETURN(BlockPool pool,
                           BlockPool::Create({.num_blocks = options.num_blocks,
                                              .num_reserved_blocks = options.num_reserved_blocks}));
  REPRISE_ASSIGN_OR_RETURN(
      BlockTable table,
      BlockTable::Create({.num_slots = options.num_slots, .max_blocks = options.max_blocks}));
  // Kernels count tokens in int32.
  constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
  if (int64_t{options.max_blocks} * options.block_size > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_blocks * block_size is too large: expected at most ", kMaxTokens,
                     ", got ", options.max_blocks, " * ", options.block_size));
  }
  BlockManager manager(options, std::move(pool), std::move(table));
  if (manager.max_tokens() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_lookahead_tokens must leave room in the pool: expected fewer than ",
                     (options.num_blocks - 1) * int64_t{options.block_size}, " tokens, got ",
                     options.num_lookahead_tokens));
  }
  return manager;
}

BlockManager::BlockManager(const BlockManagerOptions& options, BlockPool pool, BlockTable table)
    : options_(options),
      pool_(std::move(pool)),
      table_(std::move(table)),
      sequences_(options.num_slots) {
  pending_slots_.reserve(options.num_slots);
  updates_.reserve(options.num_blocks);  // no block is in two rows
}

absl::Status BlockManager::Add(SlotId slot, int num_tokens) {
  REPRISE_RETURN_IF_ERROR(CheckInRange(slot));
  Sequence& added = sequence(slot);
  if (added.is_live) {
    return absl::AlreadyExistsError(
        absl::StrCat("slot ", slot.value(), " holds a sequence of ", added.num_tokens, " tokens"));
  }
  REPRISE_RETURN_IF_ERROR(CheckLength(slot, num_tokens, options_.num_reserved_blocks));
  const int num_blocks = BlocksFor(num_tokens);
  REPRISE_RETURN_IF_ERROR(pool_.Allocate(table_.mutable_row(slot).first(num_blocks)));
  added.is_live = true;
  added.num_tokens = num_tokens;
  added.num_blocks = num_blocks;
  MarkPending(slot);
  ++num_sequences_;
  return absl::OkStatus();
}

absl::Status BlockManager::Append(SlotId slot, int num_tokens) {
  const SlotAppend append = {.slot = slot, .num_tokens = num_tokens};
  return AppendBatch(absl::MakeConstSpan(&append, 1));
}

absl::Status BlockManager::AppendBatch(absl::Span<const SlotAppend> batch) {
  // Plan: lengthen the sequences and count the blocks that they lack.
  int64_t num_lacking = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto [slot, num_tokens] = batch[i];
    absl::Status status = CheckLive(slot);
    if (status.ok() && num_tokens < 0) {
      status = absl::InvalidArgumentError(
          absl::StrCat("num_tokens of slot ", slot.value(),
                       " must not be negative: expected at least 0, got ", num_tokens));
    }
    if (status.ok()) status = CheckLength(slot, int64_t{sequence(slot).num_tokens} + num_tokens, 0);
    if (!status.ok()) {
      Undo(batch.first(i));
      return status;
    }
    const int before = BlocksFor(sequence(slot).num_tokens);
    sequence(slot).num_tokens += num_tokens;
    num_lacking += BlocksFor(sequence(slot).num_tokens) - before;
  }
  if (num_lacking > pool_.num_allocatable_reserved()) {
    Undo(batch);
    return absl::ResourceExhaustedError(absl::StrCat(
        "too few free blocks: ", pool_.num_allocatable_reserved(), " can be had now, the batch of ",
        batch.size(), " needs ", num_lacking, "; retry after sequences are freed"));
  }
  // Commit: cannot fail.
  for (const SlotAppend& append : batch) {
    GrowTo(append.slot, BlocksFor(sequence(append.slot).num_tokens));
  }
  return absl::OkStatus();
}

void BlockManager::Undo(absl::Span<const SlotAppend> appended) {
  for (const SlotAppend& append : appended) sequence(append.slot).num_tokens -= append.num_tokens;
}

absl::Status BlockManager::Truncate(SlotId slot, int num_tokens) {
  REPRISE_RETURN_IF_ERROR(CheckLive(slot));
  Sequence& truncated = sequence(slot);
  if (num_tokens < 0 || num_tokens > truncated.num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("num_tokens of slot ", slot.value(),
                                                   " must not lengthen it: expected 0 to ",
                                                   truncated.num_tokens, ", got ", num_tokens));
  }
  truncated.num_tokens = num_tokens;
  ShrinkTo(slot, BlocksFor(num_tokens));
  return absl::OkStatus();
}

absl::Status BlockManager::Free(SlotId slot) {
  REPRISE_RETURN_IF_ERROR(CheckLive(slot));
  ShrinkTo(slot, 0);
  sequence(slot).is_live = false;
  sequence(slot).num_tokens = 0;
  --num_sequences_;
  return absl::OkStatus();
}

bool BlockManager::contains(SlotId slot) const {
  return slot.value() >= 0 && slot.value() < options_.num_slots && sequence(slot).is_live;
}

int BlockManager::num_tokens(SlotId slot) const {
  CHECK(contains(slot)) << "slot " << slot << " holds no sequence";
  return sequence(slot).num_tokens;
}

absl::Span<const BlockId> BlockManager::blocks(SlotId slot) const {
  CHECK(contains(slot)) << "slot " << slot << " holds no sequence";
  return table_.row(slot).first(sequence(slot).num_blocks);
}

absl::Span<const BlockTableUpdate> BlockManager::TakeUpdates() {
  updates_.clear();
  for (SlotId slot : pending_slots_) {
    Sequence& taken = sequence(slot);
    const absl::Span<const BlockId> row = table_.row(slot);
    for (int column = taken.num_taken; column < taken.num_blocks; ++column) {
      updates_.push_back({.slot = slot.value(), .column = column, .block = row[column].value()});
    }
    taken.num_taken = taken.num_blocks;
    taken.is_pending = false;
  }
  pending_slots_.clear();
  return updates_;
}

int BlockManager::max_tokens() const {
  const int64_t num_pool_tokens = (options_.num_blocks - 1) * int64_t{options_.block_size};
  // A full row needs no look-ahead.
  if (options_.max_blocks < options_.num_blocks) return options_.max_blocks * options_.block_size;
  return static_cast<int>(std::max<int64_t>(num_pool_tokens - options_.num_lookahead_tokens, 0));
}

absl::Status BlockManager::CheckInRange(SlotId slot) const {
  if (slot.value() >= 0 && slot.value() < options_.num_slots) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("slot must be one of the manager's: expected 0 to ", options_.num_slots - 1,
                   ", got ", slot.value()));
}

absl::Status BlockManager::CheckLive(SlotId slot) const {
  REPRISE_RETURN_IF_ERROR(CheckInRange(slot));
  if (sequence(slot).is_live) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("slot ", slot.value(), " holds no sequence"));
}

absl::Status BlockManager::CheckLength(SlotId slot, int64_t num_tokens, int num_kept_back) const {
  const int64_t num_row_tokens = int64_t{options_.max_blocks} * options_.block_size;
  if (num_tokens < 0 || num_tokens > num_row_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_tokens of slot ", slot.value(), " must fit a table row: expected 0 to ",
                     num_row_tokens, " (", options_.max_blocks, " blocks of ", options_.block_size,
                     "), got ", num_tokens));
  }
  const int num_pool_blocks = options_.num_blocks - 1 - num_kept_back;
  if (BlocksFor(num_tokens) > num_pool_blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_tokens of slot ", slot.value(), " must fit the pool: expected at most ",
                     num_pool_blocks, " blocks of ", options_.block_size, ", got ", num_tokens,
                     " tokens and ", options_.num_lookahead_tokens, " of look-ahead"));
  }
  return absl::OkStatus();
}

int BlockManager::BlocksFor(int64_t num_tokens) const {
  const int64_t num_slots_needed = num_tokens + options_.num_lookahead_tokens;
  const int64_t num_row_tokens = int64_t{options_.max_blocks} * options_.block_size;
  // Both fit int32 now, where a division is cheap.
  const int num_covered = static_cast<int>(std::min(num_slots_needed, num_row_tokens));
  return num_covered / options_.block_size + (num_covered % options_.block_size != 0);
}

void BlockManager::GrowTo(SlotId slot, int num_blocks) {
  Sequence& growing = sequence(slot);
  if (num_blocks <= growing.num_blocks) return;
  absl::Status status = pool_.AllocateReserved(
      table_.mutable_row(slot).subspan(growing.num_blocks, num_blocks - growing.num_blocks));
  CHECK(status.ok()) << "a planned allocation failed: " << status;
  growing.num_blocks = num_blocks;
  MarkPending(slot);
}

void BlockManager::MarkPending(SlotId slot) {
  if (sequence(slot).is_pending) return;
  sequence(slot).is_pending = true;
  pending_slots_.push_back(slot);
}

void BlockManager::ShrinkTo(SlotId slot, int num_blocks) {
  Sequence& shrinking = sequence(slot);
  const absl::Span<BlockId> row = table_.mutable_row(slot);
  // Last block first: the pool hands out again in the opposite order, so a row that grows back
  // ascends.
  while (shrinking.num_blocks > num_blocks) {
    BlockId& last = row[--shrinking.num_blocks];
    pool_.Release(last);
    last = kNullBlock;
  }
  shrinking.num_taken = std::min(shrinking.num_taken, num_blocks);
}

void BlockManager::CheckInvariants() const {
  pool_.CheckInvariants();
  std::vector<int> num_entries(options_.num_blocks, 0);
  int num_live = 0;
  for (int i = 0; i < options_.num_slots; ++i) {
    const Sequence& checked = sequences_[i];
    const absl::Span<const BlockId> row = table_.row(SlotId(i));
    CHECK_EQ(checked.num_blocks, checked.is_live ? BlocksFor(checked.num_tokens) : 0)
        << "invariant 2, slot " << i;
    absl::flat_hash_set<BlockId> of_this_row;
    for (int column = 0; column < options_.max_blocks; ++column) {
      CHECK_EQ(row[column] != kNullBlock, column < checked.num_blocks)
          << "invariant 2, slot " << i << ", column " << column;
      if (column >= checked.num_blocks) continue;
      ++num_entries[row[column].value()];
      CHECK(of_this_row.insert(row[column]).second)
          << "invariant 4, slot " << i << ", block " << row[column];
    }
    CHECK(checked.num_taken >= 0 && checked.num_taken <= checked.num_blocks)
        << "invariant 5, slot " << i;
    CHECK(checked.is_pending || checked.num_taken == checked.num_blocks)
        << "invariant 5, slot " << i;
    num_live += checked.is_live;
  }
  CHECK_EQ(num_live, num_sequences_) << "invariant 2";
  for (int block = 1; block < options_.num_blocks; ++block) {
    CHECK_EQ(pool_.ref_count(BlockId(block)), num_entries[block]) << "invariant 3, block " << block;
  }
}

}  // namespace reprise
