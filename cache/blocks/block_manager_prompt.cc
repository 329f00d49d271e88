// What prompts find in the cache, and how BlockManager takes it over.

#include <glog/logging.h>

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
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
  // A row holds the whole prompt, even if blocks are allocated for only a part of it at first.
  const int64_t num_row_tokens = int64_t{options_.max_blocks} * options_.block_size;
  const int64_t num_prompt = static_cast<int64_t>(prompt.tokens.size());
  if (num_prompt > num_row_tokens) return CheckLength(slot, num_prompt, 0, 0, 0);
  if (prompt.num_encoder_tokens == 0) return absl::OkStatus();
  if (num_own_groups_ == num_groups()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_encoder_tokens need a cross group: expected 0, got ", prompt.num_encoder_tokens));
  }
  if (prompt.num_encoder_tokens > num_row_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_encoder_tokens must fit a table row: expected at most ", num_row_tokens,
                     " (", options_.max_blocks, " blocks of ", options_.block_size, "), got ",
                     prompt.num_encoder_tokens));
  }
  return absl::OkStatus();
}

absl::StatusOr<PromptHits> BlockManager::Add(SlotId slot, const SequencePrompt& prompt) {
  REPRISE_RETURN_IF_ERROR(CheckPrompt(slot, prompt));
  const Found found = Find(slot, prompt);
  absl::StatusOr<PromptHits> hits = AddFound(slot, prompt, found);
  if (hits.ok() || found.num_partial_tokens == 0) return hits;
  // A copy also needs its source, without which the rest may just fit.
  Found whole_blocks = found;
  whole_blocks.num_partial_tokens = 0;
  return AddFound(slot, prompt, whole_blocks);
}

absl::StatusOr<PromptHits> BlockManager::Lookup(SlotId slot, const SequencePrompt& prompt) {
  REPRISE_RETURN_IF_ERROR(CheckPrompt(slot, prompt));
  const Found found = Find(slot, prompt);
  return PromptHits{.num_tokens = found.num_blocks * options_.block_size + found.num_partial_tokens,
                    .has_encoder = found.has_encoder};
}

absl::StatusOr<PromptHits> BlockManager::AddFound(SlotId slot, const SequencePrompt& prompt,
                                                  const Found& found) {
  const int64_t num_prompt = static_cast<int64_t>(prompt.tokens.size());
  const int num_hit_tokens = found.num_blocks * options_.block_size + found.num_partial_tokens;
  const int num_tokens = static_cast<int>(std::min<int64_t>(
      num_prompt, int64_t{num_hit_tokens} + prompt.num_new_tokens.value_or(num_prompt)));
  REPRISE_RETURN_IF_ERROR(
      CheckLength(slot, num_tokens, num_hit_tokens, prompt.num_encoder_tokens, num_reserved()));

  // Plan: the shared blocks, and how many blocks are needed in addition.
  const int num_columns = NumColumns(num_tokens);
  const int num_encoder_columns = NumBlocksOf(prompt.num_encoder_tokens, options_.block_size);
  const auto first_of = [&](int group) {
    return std::min(FirstNeededBlock(options_.groups[group], num_hit_tokens, options_.block_size),
                    num_columns);
  };
  shared_.clear();
  int64_t num_fresh = 0;
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) {
      if (found.has_encoder) {
        absl::c_copy(hits(group).first(num_encoder_columns), std::back_inserter(shared_));
      } else {
        num_fresh += num_encoder_columns;
      }
      continue;
    }
    const int first = first_of(group);
    const int end = std::max(found.num_blocks, first);
    if (end > first) {
      absl::c_copy(hits(group).subspan(first, end - first), std::back_inserter(shared_));
    }
    if (found.num_partial_tokens > 0) shared_.push_back(hits(group)[found.num_blocks]);
    num_fresh += num_columns - end;
  }
  REPRISE_RETURN_IF_ERROR(cache_.CheckAcquirable(shared_, num_fresh));

  // Commit: cannot fail. All hits are held before the first block is taken in their place.
  for (const BlockId hit : shared_) cache_.Share(hit);
  Sequence& added = Start(slot);
  added.num_tokens = num_tokens;
  added.num_committed = num_hit_tokens;
  added.num_encoder_tokens = prompt.num_encoder_tokens;
  added.has_encoder = found.has_encoder;
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) {
      FillRow(slot, group, 0, found.has_encoder ? num_encoder_columns : 0, num_encoder_columns);
      continue;
    }
    FillRow(slot, group, first_of(group), found.num_blocks, num_columns);
    if (found.num_partial_tokens > 0) {
      AddCopy(hits(group)[found.num_blocks], tables_.blocks(slot, group)[found.num_blocks]);
    }
  }
  added.num_tokens_with_columns = TokensWithColumns(num_columns);
  if (cache_.is_on()) {
    content_.Commit(slot, prompt.tokens.first(num_hit_tokens));
    cache_.CountLookup(num_prompt, num_hit_tokens);
  }
  return PromptHits{.num_tokens = num_hit_tokens, .has_encoder = found.has_encoder};
}

void BlockManager::FillRow(SlotId slot, int group, int first, int end_of_hits, int end) {
  tables_.StartAt(slot, group, first);
  const int num_hits = std::max(end_of_hits - first, 0);
  const absl::Span<BlockId> row = tables_.Extend(slot, group, end - first);
  if (num_hits > 0) absl::c_copy(hits(group).subspan(first, num_hits), row.begin());
  // Whether it may use the reserve has been decided.
  const absl::Status status = cache_.AllocateReserved(row.subspan(num_hits));
  CHECK(status.ok()) << "a planned allocation failed: " << status;
}

BlockManager::Found BlockManager::Find(SlotId slot, const SequencePrompt& prompt) {
  Found found;
  if (!cache_.is_on()) return found;
  content_.Begin(slot, prompt);
  if (prompt.num_encoder_tokens > 0 && prompt.encoder_keys.empty()) return found;
  found.has_encoder = FindEncoder(slot, prompt.num_encoder_tokens);
  if (prompt.tokens.empty()) return found;
  // One token at least is computed: its logits are what the prompt was given for.
  const int num_before_last = static_cast<int>(prompt.tokens.size()) - 1;
  const int num_usable = std::min(num_before_last, prompt.max_hit_tokens.value_or(num_before_last));
  found.num_blocks =
      MatchPrefix({.index = cache_.index(),
                   .groups = options_.groups,
                   .block_size = options_.block_size,
                   .max_blocks = options_.max_blocks,
                   .num_full_blocks = num_usable / options_.block_size,
                   .hashes = [&](int n) { return content_.HashPrompt(slot, prompt.tokens, n); },
                   .tokens = prompt.tokens},
                  absl::MakeSpan(hits_));
  if (options_.partial_hits == PartialHits::kCopied) {
    found.num_partial_tokens = FindPartial(slot, prompt.tokens.first(num_usable), found.num_blocks);
  }
  return found;
}

int BlockManager::FindPartial(SlotId slot, absl::Span<const int32_t> tokens, int num_blocks) {
  const absl::Span<const int32_t> rest =
      tokens.subspan(int64_t{num_blocks} * options_.block_size, options_.block_size);
  int num_tokens = static_cast<int>(rest.size());
  for (int group = 0; group < num_groups() && num_tokens > 0; ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    const std::optional<PartialHit> hit =
        cache_.index().FindPartial(group, content_.Parent(slot, num_blocks), rest.first(num_tokens),
                                   content_.ExtraOf(slot, num_blocks));
    num_tokens = hit.has_value() ? std::min(hit->num_tokens, num_tokens) : 0;
    if (hit.has_value()) hits(group)[num_blocks] = hit->block;
  }
  return num_tokens;
}

}  // namespace reprise
