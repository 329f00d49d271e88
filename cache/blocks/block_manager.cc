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
        "partial_hits need stored tokens: expected prefix_tokens kStored, got kNotStored");
  }
  const int num_groups = static_cast<int>(options.groups.size());
  REPRISE_ASSIGN_OR_RETURN(
      PrefixCache cache,
      PrefixCache::Create({.pool = {.num_blocks = options.num_blocks,
                                    .num_reserved_blocks = options.num_reserved_blocks},
                           .reuse = options.prefix_reuse,
                           .block_size = options.block_size,
                           .num_groups = num_groups,
                           .tokens = options.prefix_tokens,
                           .seed = options.prefix_seed,
                           .num_events = options.num_prefix_events}));
  REPRISE_ASSIGN_OR_RETURN(GroupTables tables,
                           GroupTables::Create({.num_groups = num_groups,
                                                .num_slots = options.num_slots,
                                                .max_blocks = options.max_blocks}));
  // Kernels count tokens in int32.
  constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
  if (int64_t{options.max_blocks} * options.block_size > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_blocks * block_size is too large: expected at most ", kMaxTokens,
                     ", got ", options.max_blocks, " * ", options.block_size));
  }
  REPRISE_ASSIGN_OR_RETURN(
      SequenceContent content,
      SequenceContent::Create({.num_slots = cache.is_on() ? options.num_slots : 0,
                               .max_blocks = options.max_blocks,
                               .block_size = options.block_size},
                              cache.hasher()));
  BlockManager manager(options, std::move(cache), std::move(tables), std::move(content));
  if (manager.NumBlocksFor(1, 0) > options.num_blocks - 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_blocks must hold a token and the look-ahead in each group: expected at least ",
        manager.NumBlocksFor(1, 0) + 1, ", got ", options.num_blocks, " with ", num_groups,
        " groups and num_lookahead_tokens ", options.num_lookahead_tokens));
  }
  return manager;
}

BlockManager::BlockManager(const BlockManagerOptions& options, PrefixCache cache,
                           GroupTables tables, SequenceContent content)
    : options_(options),
      num_own_groups_(static_cast<int>(absl::c_count_if(options.groups, HoldsOwnTokens))),
      has_windows_(absl::c_any_of(options.groups, LosesBlocks)),
      cache_(std::move(cache)),
      tables_(std::move(tables)),
      content_(std::move(content)),
      sequences_(options.num_slots) {
  if (!cache_.is_on()) return;
  hits_.resize(options_.groups.size() * options_.max_blocks);
  shared_.reserve(hits_.size());
  encoder_tokens_.resize(options_.block_size);
}

// ---- What there is.

bool BlockManager::contains(SlotId slot) const {
  return slot.value() >= 0 && slot.value() < options_.num_slots && sequence(slot).is_live;
}

const BlockManager::Sequence& BlockManager::live(SlotId slot) const {
  CHECK(contains(slot)) << "slot " << slot << " holds no sequence";
  return sequence(slot);
}

int BlockManager::min_tokens(SlotId slot) const {
  CHECK(contains(slot)) << "slot " << slot << " holds no sequence";
  int num_tokens = 0;
  for (int group = 0; group < num_groups(); ++group) {
    num_tokens = std::max(num_tokens,
                          ShortestWithFirstBlock(options_.groups[group], tables_.first(slot, group),
                                                 options_.block_size));
  }
  return num_tokens;
}

absl::Span<const BlockId> BlockManager::blocks(SlotId slot, int group) const {
  CHECK(contains(slot)) << "slot " << slot << " holds no sequence";
  CHECK(group >= 0 && group < num_groups()) << "group " << group << " does not exist";
  return tables_.blocks(slot, group);
}

int BlockManager::first_column(SlotId slot, int group) const {
  CHECK(contains(slot)) << "slot " << slot << " holds no sequence";
  CHECK(group >= 0 && group < num_groups()) << "group " << group << " does not exist";
  return tables_.first(slot, group);
}

int BlockManager::NumColumns(int64_t num_tokens) const {
  const int64_t num_row_tokens = int64_t{options_.max_blocks} * options_.block_size;
  // It fits int32 now, where a division is cheap.
  const int num_covered = static_cast<int>(
      std::min<int64_t>(num_tokens + options_.num_lookahead_tokens, num_row_tokens));
  return num_covered / options_.block_size + (num_covered % options_.block_size != 0);
}

int BlockManager::TokensWithColumns(int num_columns) const {
  const int num_covered = num_columns * options_.block_size;
  if (num_columns == options_.max_blocks) return num_covered;  // look-ahead ends with the row
  return std::max(num_covered - options_.num_lookahead_tokens, 0);
}

int64_t BlockManager::NumBlocksFor(int num_tokens, int num_committed,
                                   int num_encoder_tokens) const {
  const int num_columns = NumColumns(num_tokens);
  int64_t num_blocks = 0;
  for (const KvGroupSpec& group : options_.groups) {
    if (!HoldsOwnTokens(group)) {
      num_blocks += NumBlocksOf(num_encoder_tokens, options_.block_size);
      continue;
    }
    num_blocks += num_columns - std::min(num_columns, FirstNeededBlock(group, num_committed,
                                                                       options_.block_size));
  }
  return num_blocks;
}

int BlockManager::max_tokens(int num_uncommitted, int num_encoder_tokens) const {
  const int num_row_tokens = options_.max_blocks * options_.block_size;
  const auto fits = [&](int num_tokens) {
    return NumBlocksFor(num_tokens, std::max(num_tokens - num_uncommitted, 0),
                        num_encoder_tokens) <= options_.num_blocks - 1;
  };
  if (!has_windows_ || num_uncommitted >= num_row_tokens) {
    // The more tokens, the more blocks.
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
  const absl::Span<const int32_t> blocks = AsInts(tables_.blocks(slot, group));
  if (row.size() < blocks.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("row must hold the blocks of slot ", slot.value(), ", group ", group,
                     ": expected at least ", blocks.size(), " entries, got ", row.size()));
  }
  std::fill(absl::c_copy(blocks, row.begin()), row.end(), kNullBlock.value());
  return absl::OkStatus();
}

absl::Span<const BlockCopy> BlockManager::TakeCopies() {
  const absl::Span<const BlockCopy> taken = copies_.Take();
  for (const BlockCopy& copy : taken) Release(BlockId(copy.src));
  return taken;
}

void BlockManager::ForgetPrefixes() {
  cache_.Clear();
  ++num_forgets_;
  if (!cache_.is_on()) return;
  // Live sequences continue from keys of before: neither they nor their encoder inputs get a name
  // again, even if they are committed later or swapped out and in.
  for (int slot = 0; slot < options_.num_slots; ++slot) content_.Forget(SlotId(slot));
}

// ---- What is asked for.

absl::Status BlockManager::CheckInRange(SlotId slot) const {
  if (slot.value() >= 0 && slot.value() < options_.num_slots) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("slot must be one of the manager's: expected 0 to ", options_.num_slots - 1,
                   ", got ", slot.value()));
}

absl::Status BlockManager::CheckEmpty(SlotId slot) const {
  REPRISE_RETURN_IF_ERROR(CheckInRange(slot));
  if (!sequence(slot).is_live) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("slot ", slot.value(), " holds a sequence of ",
                                               sequence(slot).num_tokens, " tokens"));
}

absl::Status BlockManager::CheckLive(SlotId slot) const {
  REPRISE_RETURN_IF_ERROR(CheckInRange(slot));
  if (sequence(slot).is_live) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("slot ", slot.value(), " holds no sequence"));
}

absl::Status BlockManager::CheckFilled(SlotId slot) const {
  REPRISE_RETURN_IF_ERROR(CheckLive(slot));
  if (!sequence(slot).is_arriving) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("slot ", slot.value(),
                   " must not be arriving: expected a sequence whose blocks have been filled, got "
                   "one whose copies have not been launched"));
}

absl::Status BlockManager::CheckLength(SlotId slot, int64_t num_tokens, int num_committed,
                                       int num_encoder_tokens, int num_kept_back) const {
  const int64_t num_row_tokens = int64_t{options_.max_blocks} * options_.block_size;
  if (num_tokens < 0 || num_tokens > num_row_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_tokens of slot ", slot.value(), " must fit a table row: expected 0 to ",
                     num_row_tokens, " (", options_.max_blocks, " blocks of ", options_.block_size,
                     "), got ", num_tokens));
  }
  const int num_pool_blocks = options_.num_blocks - 1 - num_kept_back;
  const int64_t num_blocks =
      NumBlocksFor(static_cast<int>(num_tokens), num_committed, num_encoder_tokens);
  if (num_blocks > num_pool_blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_tokens of slot ", slot.value(), " must fit the pool: expected at most ",
                     num_pool_blocks, " blocks of ", options_.block_size, ", got ", num_tokens,
                     " tokens and ", options_.num_lookahead_tokens, " of look-ahead, ", num_blocks,
                     " blocks over ", num_groups(), " groups"));
  }
  return absl::OkStatus();
}

}  // namespace reprise
