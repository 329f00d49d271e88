// Sequences come, grow, shrink and go: the calls of BlockManager that make room or give it back.

#include <glog/logging.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/group_retention.h"

namespace reprise {

BlockManager::Sequence& BlockManager::Start(SlotId slot) {
  Sequence& started = sequence(slot);
  started = {.is_live = true};
  ++num_sequences_;
  return started;
}

absl::Status BlockManager::Add(SlotId slot, int num_tokens) {
  REPRISE_RETURN_IF_ERROR(CheckEmpty(slot));
  REPRISE_RETURN_IF_ERROR(CheckLength(slot, num_tokens, 0, 0, num_reserved()));
  const int num_columns = NumColumns(num_tokens);
  REPRISE_RETURN_IF_ERROR(cache_.CheckAcquirable({}, int64_t{num_columns} * num_own_groups_));
  Start(slot).num_tokens = num_tokens;
  if (cache_.is_on()) content_.Begin(slot, {});
  GrowTo(slot, num_columns);
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
    if (HasRoom(slot, num_tokens)) {
      sequence(slot).num_tokens += num_tokens;
      continue;
    }
    if (absl::Status status = CheckAppend(slot, num_tokens); !status.ok()) {
      Undo(batch.first(i));
      return status;
    }
    Sequence& grown = sequence(slot);
    const int num_columns = NumColumns(grown.num_tokens);
    if (grown.may_share_tail && num_tokens > 0 && !grown.is_tail_planned) {
      grown.is_tail_planned = true;
      grown.num_tokens_planned_from = grown.num_tokens;
      num_lacking += NumToCopy(slot, grown.num_tokens, num_columns);
    }
    grown.num_tokens += num_tokens;
    num_lacking += int64_t{NumColumns(grown.num_tokens) - num_columns} * num_own_groups_;
  }
  if (num_lacking > pool().num_allocatable_reserved()) {
    Undo(batch);
    return absl::ResourceExhaustedError(
        absl::StrCat("too few free blocks: ", pool().num_allocatable_reserved(),
                     " can be had now, the batch of ", batch.size(), " needs ", num_lacking,
                     "; retry after sequences are freed"));
  }
  // Commit: cannot fail.
  for (const SlotAppend& append : batch) {
    Sequence& grown = sequence(append.slot);
    if (grown.is_tail_planned) {
      MakeOwn(append.slot, grown.num_tokens_planned_from);
      grown.is_tail_planned = false;
      grown.may_share_tail = false;
    }
    if (grown.num_tokens > grown.num_tokens_with_columns) {
      GrowTo(append.slot, NumColumns(grown.num_tokens));
    }
  }
  return absl::OkStatus();
}

bool BlockManager::HasRoom(SlotId slot, int num_tokens) const {
  if (!contains(slot) || num_tokens < 0) return false;
  const Sequence& grown = sequence(slot);
  return !grown.may_share_tail &&
         int64_t{grown.num_tokens} + num_tokens <= grown.num_tokens_with_columns;
}

absl::Status BlockManager::CheckAppend(SlotId slot, int num_tokens) const {
  REPRISE_RETURN_IF_ERROR(CheckLive(slot));
  if (num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_tokens of slot ", slot.value(),
                     " must not be negative: expected at least 0, got ", num_tokens));
  }
  // As if all that it has were committed: windows shrink with time.
  const Sequence& now = sequence(slot);
  return CheckLength(slot, int64_t{now.num_tokens} + num_tokens, now.num_tokens,
                     now.num_encoder_tokens, 0);
}

void BlockManager::Undo(absl::Span<const SlotAppend> appended) {
  for (const SlotAppend& append : appended) {
    sequence(append.slot).num_tokens -= append.num_tokens;
    sequence(append.slot).is_tail_planned = false;
  }
}

void BlockManager::GrowTo(SlotId slot, int num_columns) {
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    const int num_lacking = num_columns - tables_.end(slot, group);
    if (num_lacking <= 0) continue;
    const absl::Status status = cache_.AllocateReserved(tables_.Extend(slot, group, num_lacking));
    CHECK(status.ok()) << "a planned allocation failed: " << status;
  }
  sequence(slot).num_tokens_with_columns = TokensWithColumns(num_columns);
}

// ---- Blocks that others use too.

bool BlockManager::IsOnlyUser(BlockId block) const {
  // A copy of TakeCopies() reads the block before the next step writes it.
  return pool().ref_count(block) - copies_.NumFrom(block) == 1;
}

int BlockManager::NumToCopy(SlotId slot, int num_kept, int end_column) const {
  int num_to_copy = 0;
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    const absl::Span<const BlockId> row = tables_.blocks(slot, group);
    const int first = std::max(num_kept / options_.block_size, tables_.first(slot, group));
    for (int i = first; i < end_column; ++i) num_to_copy += !IsOnlyUser(row[i]);
  }
  return num_to_copy;
}

void BlockManager::MakeOwn(SlotId slot, int num_kept) {
  const int column = num_kept / options_.block_size;
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    for (int i = std::max(column, tables_.first(slot, group)); i < tables_.end(slot, group); ++i) {
      const BlockId block = tables_.blocks(slot, group)[i];
      if (IsOnlyUser(block)) {
        cache_.Forget(block);  // what others could find there is about to change
        continue;
      }
      BlockId own;
      const absl::Status status = cache_.AllocateReserved(absl::MakeSpan(&own, 1));
      CHECK(status.ok()) << "a planned allocation failed: " << status;
      tables_.Replace(slot, group, i, own);
      if (int64_t{i} * options_.block_size < num_kept) {
        AddCopy(block, own);
      } else {
        Release(block);
      }
    }
  }
}

void BlockManager::AddCopy(BlockId source, BlockId destination) {
  const BlockId origin = copies_.Origin(source);
  if (origin != source) {
    cache_.Share(origin);
    Release(source);
  }
  copies_.Add(origin, destination);
}

absl::Status BlockManager::Fork(SlotId from, SlotId to) {
  REPRISE_RETURN_IF_ERROR(CheckFilled(from));
  REPRISE_RETURN_IF_ERROR(CheckEmpty(to));
  const Sequence& parent = sequence(from);
  const int num_shared = NumBlocksOf(parent.num_committed, options_.block_size);
  const int num_columns = NumColumns(parent.num_committed);
  const bool copies_tail =
      options_.num_lookahead_tokens > 0 && parent.num_committed % options_.block_size != 0;
  REPRISE_RETURN_IF_ERROR(cache_.CheckAcquirable(
      {}, int64_t{num_columns - num_shared + copies_tail} * num_own_groups_));
  Sequence& child = Start(to);
  child.num_tokens = parent.num_committed;
  child.num_committed = parent.num_committed;
  child.num_encoder_tokens = parent.num_encoder_tokens;
  child.has_encoder = parent.has_encoder;
  if (cache_.is_on()) content_.Copy(from, to, parent.num_committed);
  for (int group = 0; group < num_groups(); ++group) {
    const int first = tables_.first(from, group);
    const int end = HoldsOwnTokens(options_.groups[group]) ? std::max(num_shared, first)
                                                           : tables_.end(from, group);
    tables_.StartAt(to, group, first);
    const absl::Span<BlockId> shared = tables_.Extend(to, group, end - first);
    const absl::Span<const BlockId> blocks =
        tables_.blocks(from, group).subspan(first, end - first);
    for (size_t i = 0; i < blocks.size(); ++i) {
      shared[i] = blocks[i];
      cache_.Share(blocks[i]);
    }
  }
  if (options_.num_lookahead_tokens > 0) {
    MakeOwn(to, child.num_tokens);
  } else {
    child.may_share_tail = true;
    sequence(from).may_share_tail = true;
  }
  GrowTo(to, num_columns);
  return absl::OkStatus();
}

// ---- The way back.

absl::Status BlockManager::Truncate(SlotId slot, int num_tokens) {
  REPRISE_RETURN_IF_ERROR(CheckFilled(slot));
  Sequence& truncated = sequence(slot);
  if (num_tokens < 0 || num_tokens > truncated.num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("num_tokens of slot ", slot.value(),
                                                   " must not lengthen it: expected 0 to ",
                                                   truncated.num_tokens, ", got ", num_tokens));
  }
  if (num_tokens < truncated.num_committed && num_tokens < min_tokens(slot)) {
    return absl::FailedPreconditionError(
        absl::StrCat("num_tokens of slot ", slot.value(),
                     " must not be where blocks that left a window are needed: expected at least ",
                     min_tokens(slot), ", got ", num_tokens));
  }
  const int num_columns = NumColumns(num_tokens);
  const bool cuts_content = num_tokens < truncated.num_committed;
  const bool owns_now = cuts_content && options_.num_lookahead_tokens > 0;
  if (owns_now) REPRISE_RETURN_IF_ERROR(CheckTruncation(slot, num_tokens, num_columns));
  truncated.num_tokens = num_tokens;
  if (cuts_content) {
    truncated.num_committed = num_tokens;
    if (cache_.is_on()) content_.Truncate(slot, num_tokens);
    truncated.may_share_tail = !owns_now;
  }
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    // Last block first: children before parents, and the pool hands out again in the opposite
    // order, so that a row that grows back ascends.
    const int end = std::max(num_columns, tables_.first(slot, group));
    while (tables_.end(slot, group) > end) Release(tables_.RemoveBack(slot, group));
  }
  truncated.num_tokens_with_columns = TokensWithColumns(num_columns);
  if (owns_now) MakeOwn(slot, num_tokens);
  return absl::OkStatus();
}

absl::Status BlockManager::CheckTruncation(SlotId slot, int num_tokens, int num_columns) const {
  const int num_lacking =
      NumToCopy(slot, num_tokens, num_columns) - NumFreedBeyond(slot, num_columns);
  return cache_.CheckAcquirableReserved({}, std::max(num_lacking, 0));
}

int BlockManager::NumFreedBeyond(SlotId slot, int end_column) const {
  int num_freed = 0;
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    const absl::Span<const BlockId> row = tables_.blocks(slot, group);
    const int first = std::max(end_column, tables_.first(slot, group));
    for (int i = first; i < tables_.end(slot, group); ++i) {
      if (pool().ref_count(row[i]) > 1) continue;
      ++num_freed;
      // A copy that is no longer needed releases its source.
      const BlockId source = copies_.Origin(row[i]);
      num_freed += source != row[i] && pool().ref_count(source) == 1;
    }
  }
  return num_freed;
}

absl::Status BlockManager::Free(SlotId slot) {
  REPRISE_RETURN_IF_ERROR(CheckFilled(slot));
  ReleaseAll(slot);
  return absl::OkStatus();
}

void BlockManager::Hold(BlockId block) {
  cache_.Share(block);
  ++holds_[block];
}

void BlockManager::Drop(BlockId block) {
  const auto held = holds_.find(block);
  CHECK(held != holds_.end()) << "Drop of block " << block << ", which is not held";
  if (--held->second == 0) holds_.erase(held);
  Release(block);
}

int BlockManager::num_holds(BlockId block) const {
  const auto held = holds_.find(block);
  return held == holds_.end() ? 0 : held->second;
}

void BlockManager::ReleaseAll(SlotId slot) {
  for (int group = 0; group < num_groups(); ++group) {
    while (tables_.end(slot, group) > tables_.first(slot, group)) {
      Release(tables_.RemoveBack(slot, group));
    }
    tables_.Reset(slot, group);
  }
  sequence(slot) = {};
  --num_sequences_;
}

void BlockManager::Release(BlockId block) {
  if (!copies_.empty() && pool().ref_count(block) == 1) {
    // The destination of the copy has no reader any more.
    if (const std::optional<BlockId> source = copies_.Drop(block)) cache_.Release(*source);
  }
  cache_.Release(block);
}

}  // namespace reprise
