#include "reprise/cache/blocks/block_manager.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/group_retention.h"

namespace reprise {

absl::StatusOr<BlockManager> BlockManager::Create(const BlockManagerOptions& given) {
  BlockManagerOptions options = given;
  if (options.groups.empty()) options.groups.emplace_back();
  if (options.block_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_size must be positive: expected at least 1, got ", options.block_size));
  }
  if (options.num_lookahead_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_lookahead_tokens must not be negative: expected at least 0, got ",
                     options.num_lookahead_tokens));
  }
  REPRISE_RETURN_IF_ERROR(CheckGroups(options.groups));
  if (options.partial_hits == PartialHits::kCopied &&
      options.prefix_tokens != PrefixTokens::kStored) {
    return absl::InvalidArgumentError(
        "partial_hits kCopied requires stored tokens: expected prefix_tokens kStored, got "
        "kNotStored");
  }
  REPRISE_ASSIGN_OR_RETURN(SequenceBlocks sequences, SequenceBlocks::Create(options));
  const int64_t num_needed = sequences.NumBlocksFor(1, 0) + 1;
  if (num_needed > options.num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_blocks must hold a token and the look-ahead in each group: expected at least ",
        num_needed, ", got ", options.num_blocks, " with ", options.groups.size(),
        " groups and num_lookahead_tokens ", options.num_lookahead_tokens));
  }
  return BlockManager(std::move(sequences));
}

BlockManager::BlockManager(SequenceBlocks sequences) : sequences_(std::move(sequences)) {
  if (!prefix_cache().is_on()) return;
  hits_.resize(options().groups.size() * options().max_blocks);
  shared_.reserve(hits_.size());
}

// ---- State.

bool BlockManager::contains(SlotId slot) const {
  return slot.value() >= 0 && slot.value() < options().num_slots && sequences_[slot].is_live;
}

const SequenceBlocks::Sequence& BlockManager::live(SlotId slot) const {
  CHECK(contains(slot)) << "slot " << slot << " holds no sequence";
  return sequences_[slot];
}

int BlockManager::min_tokens(SlotId slot) const {
  CHECK(contains(slot)) << "slot " << slot << " holds no sequence";
  return sequences_.min_tokens(slot);
}

absl::Span<const BlockId> BlockManager::blocks(SlotId slot, int group) const {
  CHECK(contains(slot)) << "slot " << slot << " holds no sequence";
  CHECK(group >= 0 && group < num_groups()) << "group " << group << " does not exist";
  return sequences_.tables().blocks(slot, group);
}

int BlockManager::first_column(SlotId slot, int group) const {
  CHECK(contains(slot)) << "slot " << slot << " holds no sequence";
  CHECK(group >= 0 && group < num_groups()) << "group " << group << " does not exist";
  return sequences_.tables().first(slot, group);
}

int BlockManager::max_tokens(int num_uncommitted, int num_encoder_tokens) const {
  const int num_row_tokens = options().max_blocks * options().block_size;
  const auto fits = [&](int num_tokens) {
    return NumBlocksFor(num_tokens, std::max(num_tokens - num_uncommitted, 0),
                        num_encoder_tokens) <= options().num_blocks - 1;
  };
  if (!sequences_.has_windows() || num_uncommitted >= num_row_tokens) {
    // The number of blocks grows with the number of tokens, so binary search applies.
    int fitting = 0;
    for (int beyond = num_row_tokens + 1; beyond - fitting > 1;) {
      const int middle = fitting + (beyond - fitting) / 2;
      (fits(middle) ? fitting : beyond) = middle;
    }
    return fitting;
  }
  int num_tokens = 0;
  while (num_tokens < num_row_tokens && fits(num_tokens + 1)) ++num_tokens;
  return num_tokens;
}

absl::Status BlockManager::WriteRow(SlotId slot, int group, absl::Span<int32_t> row) const {
  REPRISE_RETURN_IF_ERROR(CheckLive(slot));
  if (group < 0 || group >= num_groups()) {
    return absl::InvalidArgumentError(
        absl::StrCat("group must exist: expected 0 to ", num_groups() - 1, ", got ", group));
  }
  const absl::Span<const int32_t> blocks = AsInts(sequences_.tables().blocks(slot, group));
  if (row.size() < blocks.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("row must hold the blocks of slot ", slot.value(), ", group ", group,
                     ": expected at least ", blocks.size(), " entries, got ", row.size()));
  }
  std::fill(absl::c_copy(blocks, row.begin()), row.end(), kNullBlock.value());
  return absl::OkStatus();
}

// ---- Argument checks.

absl::Status BlockManager::CheckInRange(SlotId slot) const {
  if (slot.value() >= 0 && slot.value() < options().num_slots) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("slot must exist: expected 0 to ",
                                                 options().num_slots - 1, ", got ", slot.value()));
}

absl::Status BlockManager::CheckEmpty(SlotId slot) const {
  REPRISE_RETURN_IF_ERROR(CheckInRange(slot));
  if (!sequences_[slot].is_live) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("slot ", slot.value(), " holds a sequence of ",
                                               sequences_[slot].num_tokens, " tokens"));
}

absl::Status BlockManager::CheckLive(SlotId slot) const {
  REPRISE_RETURN_IF_ERROR(CheckInRange(slot));
  if (sequences_[slot].is_live) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("slot ", slot.value(), " holds no sequence"));
}

absl::Status BlockManager::CheckFilled(SlotId slot) const {
  REPRISE_RETURN_IF_ERROR(CheckLive(slot));
  if (!sequences_[slot].is_swapping_in) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("slot ", slot.value(),
                   " must not be swapping in: expected a sequence with filled blocks, got "
                   "one with copies that have not been launched"));
}

absl::Status BlockManager::CheckLength(SlotId slot, int64_t num_tokens, int num_committed,
                                       int num_encoder_tokens, int num_kept_back) const {
  const int64_t num_row_tokens = int64_t{options().max_blocks} * options().block_size;
  if (num_tokens < 0 || num_tokens > num_row_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_tokens of slot ", slot.value(), " must fit a table row: expected 0 to ",
                     num_row_tokens, " (", options().max_blocks, " blocks of ",
                     options().block_size, "), got ", num_tokens));
  }
  const int num_pool_blocks = options().num_blocks - 1 - num_kept_back;
  const int64_t num_blocks =
      NumBlocksFor(static_cast<int>(num_tokens), num_committed, num_encoder_tokens);
  if (num_blocks > num_pool_blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_tokens of slot ", slot.value(), " must fit the pool: expected at most ",
                     num_pool_blocks, " blocks of ", options().block_size, ", got ", num_tokens,
                     " tokens and ", options().num_lookahead_tokens, " of look-ahead, ", num_blocks,
                     " blocks over ", num_groups(), " groups"));
  }
  return absl::OkStatus();
}

}  // namespace reprise
