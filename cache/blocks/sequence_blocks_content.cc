// SequenceBlocks: committing, indexing and forgetting content.

#include <algorithm>
#include <optional>

#include "absl/algorithm/container.h"
#include "reprise/base/divisor.h"
#include "reprise/cache/blocks/sequence_blocks.h"
#include "reprise/cache/group_retention.h"

namespace reprise {

void SequenceBlocks::Commit(SlotId slot, absl::Span<const int32_t> tokens) {
  if (cache_.is_on()) {
    const int num_known_before = content_.num_known_blocks(slot);
    Index(slot, num_known_before, content_.Commit(slot, tokens));
  }
  Advance(slot, static_cast<int>(tokens.size()));
}

void SequenceBlocks::CommitUnknown(SlotId slot, int num_tokens) {
  if (cache_.is_on() && num_tokens > 0) content_.ForgetRest(slot);
  Advance(slot, num_tokens);
}

void SequenceBlocks::Index(SlotId slot, int first_column, int end_column) {
  if (first_column >= end_column) return;  // most tokens do not complete a block
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    const absl::Span<const BlockId> row = tables_.blocks(slot, group);
    for (int i = std::max(first_column, tables_.first(slot, group)); i < end_column; ++i) {
      cache_.Insert(row[i], content_.Key(slot, i, group));
    }
  }
}

void SequenceBlocks::Advance(SlotId slot, int num_tokens) {
  Sequence& grown = (*this)[slot];
  grown.num_committed += num_tokens;
  if (!has_windows_) return;
  for (int group = 0; group < num_groups(); ++group) {
    if (!LosesBlocks(options_.groups[group])) continue;
    const int first =
        std::min(FirstNeededBlock(options_.groups[group], grown.num_committed, options_.block_size),
                 tables_.end(slot, group));
    while (tables_.first(slot, group) < first) Release(tables_.RemoveFront(slot, group));
  }
}

void SequenceBlocks::CommitEncoder(SlotId slot) {
  (*this)[slot].has_encoder = true;
  if (cache_.is_on()) IndexEncoder(slot);
}

void SequenceBlocks::IndexEncoder(SlotId slot) {
  const auto insert = [&](int column, PrefixKey key) {
    for (int group = 0; group < num_groups(); ++group) {
      if (HoldsOwnTokens(options_.groups[group])) continue;
      key.group = group;
      cache_.Insert(tables_.blocks(slot, group)[column], key);
    }
  };
  ForEachEncoderKey(slot, (*this)[slot].num_encoder_tokens, insert);
}

void SequenceBlocks::ConfirmLoaded(SlotId slot) {
  Sequence& loaded = (*this)[slot];
  loaded.is_swapping_in = false;
  if (!cache_.is_on()) return;
  Index(slot, 0, content_.num_known_blocks(slot));
  if (loaded.has_encoder) IndexEncoder(slot);
}

void SequenceBlocks::Forget(SlotId slot) {
  if (!cache_.is_on()) return;
  // Removes entries by key, not by block: some blocks have left a window, and other sequences may
  // have computed the same content.
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
      ForEachEncoderKey(slot, (*this)[slot].num_encoder_tokens,
                        [&](int, const PrefixKey& key) { forget(group, key.hash); });
    }
  }
  content_.Forget(slot);
}

void SequenceBlocks::ForgetAll() {
  cache_.Clear();
  ++num_forgets_;
  if (!cache_.is_on()) return;
  // Live sequences continue with keys from before the call. Neither these sequences nor their
  // encoder inputs may enter the index again, even after later commits or a swap out and in.
  for (int slot = 0; slot < options_.num_slots; ++slot) content_.Forget(SlotId(slot));
}

void SequenceBlocks::ForEachEncoderKey(
    SlotId slot, int num_encoder_tokens,
    absl::FunctionRef<void(int column, const PrefixKey& key)> visit) {
  const std::optional<PrefixHash>& root = content_.encoder_root(slot);
  if (!root.has_value()) return;
  // The encoder input has no token ids. Its number of tokens replaces them, because the content of
  // each block depends on it.
  absl::c_fill(encoder_tokens_, num_encoder_tokens);
  PrefixKey key;
  key.hash = *root;
  key.tokens = encoder_tokens_;
  const int num_columns = CeilDiv(num_encoder_tokens, options_.block_size);
  for (int column = 0; column < num_columns; ++column) {
    key.parent = key.hash;
    key.hash = cache_.hasher().Extend(key.parent, encoder_tokens_);
    visit(column, key);
  }
}

}  // namespace reprise
