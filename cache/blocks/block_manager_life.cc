// BlockManager: calls that add, grow, shrink, commit, end, save and restore sequences.

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "reprise/base/divisor.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/blocks/block_manager.h"

namespace reprise {

absl::Status BlockManager::Add(SlotId slot, int num_tokens) {
  REPRISE_RETURN_IF_ERROR(CheckEmpty(slot));
  REPRISE_RETURN_IF_ERROR(CheckLength(slot, num_tokens, 0, 0, num_reserved()));
  const int num_columns = sequences_.NumColumns(num_tokens);
  REPRISE_RETURN_IF_ERROR(
      prefix_cache().CheckAcquirable({}, int64_t{num_columns} * sequences_.num_own_groups()));
  sequences_.Start(slot).num_tokens = num_tokens;
  if (prefix_cache().is_on()) sequences_.content().Begin(slot, {});
  sequences_.GrowTo(slot, num_columns);
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
      sequences_[slot].num_tokens += num_tokens;
      continue;
    }
    if (absl::Status status = CheckAppend(slot, num_tokens); !status.ok()) {
      Undo(batch.first(i));
      return status;
    }
    SequenceBlocks::Sequence& grown = sequences_[slot];
    const int num_columns = sequences_.NumColumns(grown.num_tokens);
    if (grown.may_share_tail && num_tokens > 0 && !grown.is_tail_planned) {
      grown.is_tail_planned = true;
      grown.num_tokens_planned_from = grown.num_tokens;
      num_lacking += sequences_.NumToCopy(slot, grown.num_tokens, num_columns);
    }
    grown.num_tokens += num_tokens;
    num_lacking += int64_t{sequences_.NumColumns(grown.num_tokens) - num_columns} *
                   sequences_.num_own_groups();
  }
  if (num_lacking > pool().num_allocatable_reserved()) {
    Undo(batch);
    return absl::ResourceExhaustedError(
        absl::StrCat("too few free blocks: ", pool().num_allocatable_reserved(),
                     " are available now, the batch of ", batch.size(), " needs ", num_lacking,
                     "; retry after sequences are freed"));
  }
  // Commit: cannot fail.
  for (const SlotAppend& append : batch) {
    SequenceBlocks::Sequence& grown = sequences_[append.slot];
    if (grown.is_tail_planned) {
      sequences_.MakeOwn(append.slot, grown.num_tokens_planned_from);
      grown.is_tail_planned = false;
      grown.may_share_tail = false;
    }
    if (grown.num_tokens > grown.num_tokens_with_columns) {
      sequences_.GrowTo(append.slot, sequences_.NumColumns(grown.num_tokens));
    }
  }
  return absl::OkStatus();
}

bool BlockManager::HasRoom(SlotId slot, int num_tokens) const {
  if (!contains(slot) || num_tokens < 0) return false;
  const SequenceBlocks::Sequence& grown = sequences_[slot];
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
  // Assumes that all current tokens are committed, because windows will release blocks over time.
  const SequenceBlocks::Sequence& now = sequences_[slot];
  return CheckLength(slot, int64_t{now.num_tokens} + num_tokens, now.num_tokens,
                     now.num_encoder_tokens, 0);
}

void BlockManager::Undo(absl::Span<const SlotAppend> appended) {
  for (const SlotAppend& append : appended) {
    sequences_[append.slot].num_tokens -= append.num_tokens;
    sequences_[append.slot].is_tail_planned = false;
  }
}

absl::Status BlockManager::Fork(SlotId from, SlotId to) {
  REPRISE_RETURN_IF_ERROR(CheckFilled(from));
  REPRISE_RETURN_IF_ERROR(CheckEmpty(to));
  const SequenceBlocks::Sequence& parent = sequences_[from];
  const int num_shared = CeilDiv(parent.num_committed, options().block_size);
  const int num_columns = sequences_.NumColumns(parent.num_committed);
  const bool copies_tail =
      options().num_lookahead_tokens > 0 && parent.num_committed % options().block_size != 0;
  REPRISE_RETURN_IF_ERROR(prefix_cache().CheckAcquirable(
      {}, int64_t{num_columns - num_shared + copies_tail} * sequences_.num_own_groups()));
  sequences_.Fork(from, to);
  return absl::OkStatus();
}

// ---- Shortening and ending.

absl::Status BlockManager::Truncate(SlotId slot, int num_tokens) {
  REPRISE_RETURN_IF_ERROR(CheckFilled(slot));
  SequenceBlocks::Sequence& truncated = sequences_[slot];
  if (num_tokens < 0 || num_tokens > truncated.num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("num_tokens of slot ", slot.value(),
                                                   " must not exceed its length: expected 0 to ",
                                                   truncated.num_tokens, ", got ", num_tokens));
  }
  if (num_tokens < truncated.num_committed && num_tokens < min_tokens(slot)) {
    return absl::FailedPreconditionError(
        absl::StrCat("num_tokens of slot ", slot.value(),
                     " must not need blocks that left a window: expected at least ",
                     min_tokens(slot), ", got ", num_tokens));
  }
  const int num_columns = sequences_.NumColumns(num_tokens);
  const bool cuts_content = num_tokens < truncated.num_committed;
  const bool owns_now = cuts_content && options().num_lookahead_tokens > 0;
  if (owns_now) REPRISE_RETURN_IF_ERROR(CheckTruncation(slot, num_tokens, num_columns));
  truncated.num_tokens = num_tokens;
  if (cuts_content) {
    truncated.num_committed = num_tokens;
    if (prefix_cache().is_on()) sequences_.content().Truncate(slot, num_tokens);
    truncated.may_share_tail = !owns_now;
  }
  sequences_.ShrinkTo(slot, num_columns);
  if (owns_now) sequences_.MakeOwn(slot, num_tokens);
  return absl::OkStatus();
}

absl::Status BlockManager::CheckTruncation(SlotId slot, int num_tokens, int num_columns) const {
  const int num_lacking = sequences_.NumToCopy(slot, num_tokens, num_columns) -
                          sequences_.NumFreedBeyond(slot, num_columns);
  return prefix_cache().CheckAcquirableReserved({}, std::max(num_lacking, 0));
}

absl::Status BlockManager::Free(SlotId slot) {
  REPRISE_RETURN_IF_ERROR(CheckFilled(slot));
  sequences_.End(slot);
  return absl::OkStatus();
}

// ---- Computed tokens.

absl::Status BlockManager::CheckCommit(SlotId slot, int64_t num_tokens) const {
  REPRISE_RETURN_IF_ERROR(CheckFilled(slot));
  const SequenceBlocks::Sequence& grown = sequences_[slot];
  if (num_tokens >= 0 && grown.num_committed + num_tokens <= grown.num_tokens) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tokens of slot ", slot.value(), " must have been allocated: expected 0 to ",
                   grown.num_tokens - grown.num_committed, ", got ", num_tokens));
}

absl::Status BlockManager::Commit(SlotId slot, absl::Span<const int32_t> tokens) {
  REPRISE_RETURN_IF_ERROR(CheckCommit(slot, static_cast<int64_t>(tokens.size())));
  sequences_.Commit(slot, tokens);
  return absl::OkStatus();
}

absl::Status BlockManager::CommitUnknown(SlotId slot, int num_tokens) {
  REPRISE_RETURN_IF_ERROR(CheckCommit(slot, num_tokens));
  sequences_.CommitUnknown(slot, num_tokens);
  return absl::OkStatus();
}

absl::Status BlockManager::CommitEncoder(SlotId slot) {
  REPRISE_RETURN_IF_ERROR(CheckFilled(slot));
  if (sequences_[slot].num_encoder_tokens == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", slot.value(),
                     " must have an encoder input: expected at least 1 encoder token, got 0"));
  }
  sequences_.CommitEncoder(slot);
  return absl::OkStatus();
}

absl::Status BlockManager::ForgetContent(SlotId slot) {
  REPRISE_RETURN_IF_ERROR(CheckFilled(slot));
  sequences_.Forget(slot);
  return absl::OkStatus();
}

// ---- Saving and restoring.

SavedSequence BlockManager::Save(SlotId slot) const {
  CHECK(!live(slot).is_swapping_in)
      << "slot " << slot << " holds blocks that have not been filled yet";
  return sequences_.Save(slot);
}

absl::Status BlockManager::Restore(SlotId slot, const SavedSequence& saved) {
  REPRISE_RETURN_IF_ERROR(CheckEmpty(slot));
  REPRISE_RETURN_IF_ERROR(
      CheckLength(slot, saved.num_tokens, saved.num_tokens, saved.num_encoder_tokens, 0));
  const int64_t num_fresh = sequences_.NumBlocksToLoad(saved);
  if (num_fresh > 0) {
    // A sequence that had grown into the reserve needs part of the reserve again.
    const int64_t num_kept_back =
        std::min<int64_t>(num_reserved(), options().num_blocks - 1 - num_fresh);
    REPRISE_RETURN_IF_ERROR(prefix_cache().CheckAcquirableReserved({}, num_fresh + num_kept_back));
  }
  sequences_.Load(slot, saved);
  return absl::OkStatus();
}

void BlockManager::ConfirmRestored(SlotId slot) {
  CHECK(is_swapping_in(slot)) << "slot " << slot << " holds no sequence that is swapping in";
  sequences_.ConfirmLoaded(slot);
}

void BlockManager::AbandonRestored(SlotId slot) {
  CHECK(is_swapping_in(slot)) << "slot " << slot << " holds no sequence that is swapping in";
  sequences_.End(slot);
}

}  // namespace reprise
