// What sequences hold: the calls of BlockManager that count it as computed, and that let a sequence
// go away and come back.

#include <glog/logging.h>

#include <algorithm>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/group_retention.h"

namespace reprise {

// ---- What has been computed.

absl::Status BlockManager::CheckCommit(SlotId slot, int64_t num_tokens) const {
  REPRISE_RETURN_IF_ERROR(CheckFilled(slot));
  const Sequence& grown = sequence(slot);
  if (num_tokens >= 0 && grown.num_committed + num_tokens <= grown.num_tokens) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tokens of slot ", slot.value(), " must have had room: expected 0 to ",
                   grown.num_tokens - grown.num_committed, ", got ", num_tokens));
}

absl::Status BlockManager::Commit(SlotId slot, absl::Span<const int32_t> tokens) {
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  REPRISE_RETURN_IF_ERROR(CheckCommit(slot, num_tokens));
  if (cache_.is_on()) {
    const int num_known_before = content_.num_known_blocks(slot);
    IndexBlocks(slot, num_known_before, content_.Commit(slot, tokens));
  }
  Advance(slot, num_tokens);
  return absl::OkStatus();
}

absl::Status BlockManager::CommitUnknown(SlotId slot, int num_tokens) {
  REPRISE_RETURN_IF_ERROR(CheckCommit(slot, num_tokens));
  if (cache_.is_on() && num_tokens > 0) content_.ForgetRest(slot);
  Advance(slot, num_tokens);
  return absl::OkStatus();
}

void BlockManager::IndexBlocks(SlotId slot, int first_column, int end_column) {
  if (first_column >= end_column) return;  // most tokens end no block
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    const absl::Span<const BlockId> row = tables_.blocks(slot, group);
    for (int i = std::max(first_column, tables_.first(slot, group)); i < end_column; ++i) {
      cache_.Insert(row[i], content_.Key(slot, i, group));
    }
  }
}

void BlockManager::Advance(SlotId slot, int64_t num_tokens) {
  Sequence& grown = sequence(slot);
  grown.num_committed += static_cast<int>(num_tokens);
  if (!has_windows_) return;
  for (int group = 0; group < num_groups(); ++group) {
    if (!LosesBlocks(options_.groups[group])) continue;
    const int first =
        std::min(FirstNeededBlock(options_.groups[group], grown.num_committed, options_.block_size),
                 tables_.end(slot, group));
    while (tables_.first(slot, group) < first) Release(tables_.RemoveFront(slot, group));
  }
}

absl::Status BlockManager::ForgetContent(SlotId slot) {
  REPRISE_RETURN_IF_ERROR(CheckFilled(slot));
  if (!cache_.is_on()) return absl::OkStatus();
  // By key, not by block: some have left a window, and others have computed the same.
  const auto forget = [&](int group, PrefixHash hash) {
    for (std::optional<BlockId> block = cache_.index().Find(group, hash); block.has_value();
         block = cache_.index().Find(group, hash)) {
      cache_.Forget(*block);
    }
  };
  for (int group = 0; group < num_groups(); ++group) {
    if (HoldsOwnTokens(options_.groups[group])) {
      for (int column = 0; column < content_.num_known_blocks(slot); ++column) {
        forget(group, content_.Key(slot, column, group).hash);
      }
    } else {
      ForEachEncoderKey(slot, sequence(slot).num_encoder_tokens,
                        [&](int, const PrefixKey& key) { forget(group, key.hash); });
    }
  }
  content_.Forget(slot);
  return absl::OkStatus();
}

// ---- The encoder's blocks.

void BlockManager::ForEachEncoderKey(
    SlotId slot, int num_encoder_tokens,
    absl::FunctionRef<void(int column, const PrefixKey& key)> visit) {
  const std::optional<PrefixHash>& root = content_.encoder_root(slot);
  if (!root.has_value()) return;
  // The input has no token ids: the number of its tokens replaces them, since it determines the
  // contents of each block.
  absl::c_fill(encoder_tokens_, num_encoder_tokens);
  PrefixKey key;
  key.hash = *root;
  key.tokens = encoder_tokens_;
  const int num_columns = NumBlocksOf(num_encoder_tokens, options_.block_size);
  for (int column = 0; column < num_columns; ++column) {
    key.parent = key.hash;
    key.hash = cache_.hasher().Extend(key.parent, encoder_tokens_);
    visit(column, key);
  }
}

bool BlockManager::FindEncoder(SlotId slot, int num_encoder_tokens) {
  if (num_encoder_tokens == 0) return false;
  bool is_here = content_.encoder_root(slot).has_value();
  ForEachEncoderKey(slot, num_encoder_tokens, [&](int column, const PrefixKey& key) {
    for (int group = 0; group < num_groups() && is_here; ++group) {
      if (HoldsOwnTokens(options_.groups[group])) continue;
      is_here =
          cache_.index().FindPrefix(
              {.group = group, .hashes = absl::MakeConstSpan(&key.hash, 1), .tokens = key.tokens},
              hits(group).subspan(column, 1)) == 1;
    }
  });
  return is_here;
}

absl::Status BlockManager::CommitEncoder(SlotId slot) {
  REPRISE_RETURN_IF_ERROR(CheckFilled(slot));
  const int num_encoder_tokens = sequence(slot).num_encoder_tokens;
  if (num_encoder_tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "slot ", slot.value(), " must have an encoder's input: expected tokens of it, got 0"));
  }
  sequence(slot).has_encoder = true;
  if (cache_.is_on()) IndexEncoder(slot);
  return absl::OkStatus();
}

void BlockManager::IndexEncoder(SlotId slot) {
  const auto insert = [&](int column, PrefixKey key) {
    for (int group = 0; group < num_groups(); ++group) {
      if (HoldsOwnTokens(options_.groups[group])) continue;
      key.group = group;
      cache_.Insert(tables_.blocks(slot, group)[column], key);
    }
  };
  ForEachEncoderKey(slot, sequence(slot).num_encoder_tokens, insert);
}

// ---- Away and back.

SavedSequence BlockManager::Save(SlotId slot) const {
  const Sequence& saved = live(slot);
  CHECK(!saved.is_arriving) << "slot " << slot << " holds blocks that are still to be filled";
  SavedSequence result;
  result.num_tokens = saved.num_committed;
  result.num_encoder_tokens = saved.num_encoder_tokens;
  result.has_encoder = saved.has_encoder;
  result.num_forgets = num_forgets_;
  for (int group = 0; group < num_groups(); ++group) {
    result.first_columns.push_back(tables_.first(slot, group));
  }
  if (cache_.is_on()) result.content = content_.Save(slot);
  return result;
}

absl::Status BlockManager::Restore(SlotId slot, const SavedSequence& saved) {
  REPRISE_RETURN_IF_ERROR(CheckEmpty(slot));
  REPRISE_RETURN_IF_ERROR(
      CheckLength(slot, saved.num_tokens, saved.num_tokens, saved.num_encoder_tokens, 0));
  const int num_columns = NumColumns(saved.num_tokens);
  const int num_encoder_columns = NumBlocksOf(saved.num_encoder_tokens, options_.block_size);
  const auto end_of = [&](int group) {
    return HoldsOwnTokens(options_.groups[group])
               ? std::max(num_columns, saved.first_columns[group])
               : num_encoder_columns;
  };
  CHECK_EQ(saved.first_columns.size(), options_.groups.size()) << "saved by another manager";
  int64_t num_fresh = 0;
  for (int group = 0; group < num_groups(); ++group) {
    num_fresh += end_of(group) - saved.first_columns[group];
  }
  if (num_fresh > 0) {
    // A sequence that grew into the reserve needs some of it again.
    const int64_t num_kept_back =
        std::min<int64_t>(num_reserved(), options_.num_blocks - 1 - num_fresh);
    REPRISE_RETURN_IF_ERROR(cache_.CheckAcquirableReserved({}, num_fresh + num_kept_back));
  }
  Sequence& restored = Start(slot);
  restored.is_arriving = true;
  restored.num_tokens = saved.num_tokens;
  restored.num_committed = saved.num_tokens;
  restored.num_encoder_tokens = saved.num_encoder_tokens;
  restored.has_encoder = saved.has_encoder;
  for (int group = 0; group < num_groups(); ++group) {
    FillRow(slot, group, saved.first_columns[group], 0, end_of(group));
  }
  restored.num_tokens_with_columns = TokensWithColumns(num_columns);
  if (cache_.is_on()) {
    content_.Load(slot, saved.content);
    // Prefixes were forgotten while it was away.
    if (saved.num_forgets != num_forgets_) content_.Forget(slot);
  }
  return absl::OkStatus();
}

void BlockManager::ConfirmRestored(SlotId slot) {
  CHECK(is_arriving(slot)) << "slot " << slot << " holds no arriving sequence";
  Sequence& restored = sequence(slot);
  restored.is_arriving = false;
  if (!cache_.is_on()) return;
  IndexBlocks(slot, 0, content_.num_known_blocks(slot));
  if (restored.has_encoder) IndexEncoder(slot);
}

void BlockManager::AbandonRestored(SlotId slot) {
  CHECK(is_arriving(slot)) << "slot " << slot << " holds no arriving sequence";
  ReleaseAll(slot);
}

}  // namespace reprise
