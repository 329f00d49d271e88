// BlockManager: finding a prompt's prefix in the cache, and adding the sequence with it.

#include <glog/logging.h>

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/divisor.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/group_retention.h"

namespace reprise {

absl::Status BlockManager::CheckPrompt(SlotId slot, const SequencePrompt& prompt) const {
  REPRISE_RETURN_IF_ERROR(CheckEmpty(slot));
  const auto not_negative = [](absl::string_view name, int value) {
    return value >= 0 ? absl::OkStatus()
                      : absl::InvalidArgumentError(absl::StrCat(
                            name, " must not be negative: expected at least 0, got ", value));
  };
  REPRISE_RETURN_IF_ERROR(not_negative("num_encoder_tokens", prompt.num_encoder_tokens));
  REPRISE_RETURN_IF_ERROR(not_negative("num_new_tokens", prompt.num_new_tokens.value_or(0)));
  REPRISE_RETURN_IF_ERROR(not_negative("max_hit_tokens", prompt.max_hit_tokens.value_or(0)));
  for (const RangeKey& range : prompt.range_keys) {
    REPRISE_RETURN_IF_ERROR(not_negative("first_token of range_keys", range.first_token));
    REPRISE_RETURN_IF_ERROR(not_negative("num_tokens of range_keys", range.num_tokens));
  }
  // The row must fit the whole prompt, even if only a part is allocated at first.
  const int64_t num_row_tokens = int64_t{options().max_blocks} * options().block_size;
  const int64_t num_prompt = static_cast<int64_t>(prompt.tokens.size());
  if (num_prompt > num_row_tokens) return CheckLength(slot, num_prompt, 0, 0, 0);
  if (prompt.num_encoder_tokens == 0) return absl::OkStatus();
  if (sequences_.num_own_groups() == num_groups()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_encoder_tokens need a cross group: expected 0, got ", prompt.num_encoder_tokens));
  }
  if (prompt.num_encoder_tokens > num_row_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_encoder_tokens must fit a table row: expected at most ", num_row_tokens,
                     " (", options().max_blocks, " blocks of ", options().block_size, "), got ",
                     prompt.num_encoder_tokens));
  }
  return absl::OkStatus();
}

absl::StatusOr<PromptHits> BlockManager::Add(SlotId slot, const SequencePrompt& prompt) {
  REPRISE_RETURN_IF_ERROR(CheckPrompt(slot, prompt));
  const Found found = Find(slot, prompt);
  absl::StatusOr<PromptHits> hits = AddFound(slot, prompt, found);
  if (hits.ok() || found.num_partial_tokens == 0) return hits;
  // A partial hit also needs the source of its copy. Without it, the rest may just fit.
  Found whole_blocks = found;
  whole_blocks.num_partial_tokens = 0;
  return AddFound(slot, prompt, whole_blocks);
}

absl::StatusOr<PromptHits> BlockManager::Lookup(SlotId slot, const SequencePrompt& prompt) {
  REPRISE_RETURN_IF_ERROR(CheckPrompt(slot, prompt));
  const Found found = Find(slot, prompt);
  return PromptHits{
      .num_tokens = found.num_blocks * options().block_size + found.num_partial_tokens,
      .has_encoder = found.has_encoder};
}

absl::StatusOr<PromptHits> BlockManager::AddFound(SlotId slot, const SequencePrompt& prompt,
                                                  const Found& found) {
  const int64_t num_prompt = static_cast<int64_t>(prompt.tokens.size());
  const int num_hit_tokens = found.num_blocks * options().block_size + found.num_partial_tokens;
  const int num_tokens = static_cast<int>(std::min<int64_t>(
      num_prompt, int64_t{num_hit_tokens} + prompt.num_new_tokens.value_or(num_prompt)));
  REPRISE_RETURN_IF_ERROR(
      CheckLength(slot, num_tokens, num_hit_tokens, prompt.num_encoder_tokens, num_reserved()));

  // Plan: determines the shared blocks and the number of new blocks.
  const int num_columns = sequences_.NumColumns(num_tokens);
  const int num_encoder_columns = CeilDiv(prompt.num_encoder_tokens, options().block_size);
  const auto first_of = [&](int group) {
    return std::min(FirstNeededBlock(groups()[group], num_hit_tokens, options().block_size),
                    num_columns);
  };
  const auto hits_of = [&](int group) -> absl::Span<const BlockId> {
    if (!HoldsOwnTokens(groups()[group])) {
      if (!found.has_encoder) return {};
      return hits(group).first(num_encoder_columns);
    }
    const int first = first_of(group);
    if (first >= found.num_blocks) return {};
    return hits(group).subspan(first, found.num_blocks - first);
  };
  shared_.clear();
  int64_t num_fresh = 0;
  for (int group = 0; group < num_groups(); ++group) {
    const absl::Span<const BlockId> shared = hits_of(group);
    absl::c_copy(shared, std::back_inserter(shared_));
    if (!HoldsOwnTokens(groups()[group])) {
      num_fresh += num_encoder_columns - static_cast<int>(shared.size());
      continue;
    }
    if (found.num_partial_tokens > 0) shared_.push_back(hits(group)[found.num_blocks]);
    num_fresh += num_columns - std::max(found.num_blocks, first_of(group));
  }
  REPRISE_RETURN_IF_ERROR(prefix_cache().CheckAcquirable(shared_, num_fresh));

  // Commit: cannot fail. All hits are shared before the first new block is allocated, so that no
  // hit is evicted.
  for (const BlockId hit : shared_) sequences_.cache().Share(hit);
  SequenceBlocks::Sequence& added = sequences_.Start(slot);
  added.num_tokens = num_tokens;
  added.num_committed = num_hit_tokens;
  added.num_encoder_tokens = prompt.num_encoder_tokens;
  added.has_encoder = found.has_encoder;
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(groups()[group])) {
      sequences_.FillRow(slot, group, 0, hits_of(group), num_encoder_columns);
      continue;
    }
    sequences_.FillRow(slot, group, first_of(group), hits_of(group), num_columns);
    if (found.num_partial_tokens > 0) {
      sequences_.AddCopy(hits(group)[found.num_blocks],
                         sequences_.tables().blocks(slot, group)[found.num_blocks]);
    }
  }
  sequences_.GrowTo(slot, num_columns);
  if (prefix_cache().is_on()) {
    sequences_.content().Commit(slot, prompt.tokens.first(num_hit_tokens));
    sequences_.cache().CountLookup(num_prompt, num_hit_tokens);
  }
  return PromptHits{.num_tokens = num_hit_tokens, .has_encoder = found.has_encoder};
}

BlockManager::Found BlockManager::Find(SlotId slot, const SequencePrompt& prompt) {
  Found found;
  if (!prefix_cache().is_on()) return found;
  sequences_.content().Begin(slot, prompt);
  if (prompt.num_encoder_tokens > 0 && prompt.encoder_keys.empty()) return found;
  found.has_encoder = FindEncoder(slot, prompt.num_encoder_tokens);
  if (prompt.tokens.empty()) return found;
  // At least one token must be computed, because the caller needs its logits.
  const int num_before_last = static_cast<int>(prompt.tokens.size()) - 1;
  const int num_usable = std::min(num_before_last, prompt.max_hit_tokens.value_or(num_before_last));
  found.num_blocks = MatchPrefix(
      {.index = prefix_cache().index(),
       .groups = groups(),
       .block_size = options().block_size,
       .max_blocks = options().max_blocks,
       .num_full_blocks = num_usable / options().block_size,
       .hashes = [&](int n) { return sequences_.content().HashPrompt(slot, prompt.tokens, n); },
       .tokens = prompt.tokens},
      absl::MakeSpan(hits_));
  if (options().partial_hits == PartialHits::kCopied) {
    found.num_partial_tokens = FindPartial(slot, prompt.tokens.first(num_usable), found.num_blocks);
  }
  return found;
}

int BlockManager::FindPartial(SlotId slot, absl::Span<const int32_t> tokens, int num_blocks) {
  const absl::Span<const int32_t> rest =
      tokens.subspan(int64_t{num_blocks} * options().block_size, options().block_size);
  int num_tokens = static_cast<int>(rest.size());
  for (int group = 0; group < num_groups() && num_tokens > 0; ++group) {
    if (!HoldsOwnTokens(groups()[group])) continue;
    const std::optional<PartialHit> hit = prefix_cache().index().FindPartial(
        group, sequences_.content().Parent(slot, num_blocks), rest.first(num_tokens),
        sequences_.content().ExtraOf(slot, num_blocks));
    num_tokens = hit.has_value() ? std::min(hit->num_tokens, num_tokens) : 0;
    if (hit.has_value()) hits(group)[num_blocks] = hit->block;
  }
  return num_tokens;
}

bool BlockManager::FindEncoder(SlotId slot, int num_encoder_tokens) {
  if (num_encoder_tokens == 0) return false;
  bool is_here = sequences_.content().encoder_root(slot).has_value();
  sequences_.ForEachEncoderKey(slot, num_encoder_tokens, [&](int column, const PrefixKey& key) {
    for (int group = 0; group < num_groups() && is_here; ++group) {
      if (HoldsOwnTokens(groups()[group])) continue;
      is_here =
          prefix_cache().index().FindPrefix(
              {.group = group, .hashes = absl::MakeConstSpan(&key.hash, 1), .tokens = key.tokens},
              hits(group).subspan(column, 1)) == 1;
    }
  });
  return is_here;
}

}  // namespace reprise
