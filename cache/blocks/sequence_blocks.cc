#include "reprise/cache/blocks/sequence_blocks.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/divisor.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/group_retention.h"

namespace reprise {

absl::StatusOr<SequenceBlocks> SequenceBlocks::Create(const BlockManagerOptions& options) {
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
  return SequenceBlocks(options, std::move(cache), std::move(tables), std::move(content));
}

SequenceBlocks::SequenceBlocks(const BlockManagerOptions& options, PrefixCache cache,
                               GroupTables tables, SequenceContent content)
    : options_(options),
      num_own_groups_(static_cast<int>(absl::c_count_if(options.groups, HoldsOwnTokens))),
      has_windows_(absl::c_any_of(options.groups, LosesBlocks)),
      cache_(std::move(cache)),
      tables_(std::move(tables)),
      content_(std::move(content)),
      sequences_(options.num_slots) {
  if (cache_.is_on()) encoder_tokens_.resize(options_.block_size);
}

// ---- Arithmetic.

int SequenceBlocks::NumColumns(int64_t num_tokens) const {
  const int64_t num_row_tokens = int64_t{options_.max_blocks} * options_.block_size;
  // The value now fits int32, whose division is cheap.
  const int num_covered = static_cast<int>(
      std::min<int64_t>(num_tokens + options_.num_lookahead_tokens, num_row_tokens));
  return CeilDiv(num_covered, options_.block_size);
}

int SequenceBlocks::TokensWithColumns(int num_columns) const {
  const int num_covered = num_columns * options_.block_size;
  // The look-ahead ends at the end of the row.
  if (num_columns == options_.max_blocks) return num_covered;
  return std::max(num_covered - options_.num_lookahead_tokens, 0);
}

int64_t SequenceBlocks::NumBlocksFor(int num_tokens, int num_committed,
                                     int num_encoder_tokens) const {
  const int num_columns = NumColumns(num_tokens);
  int64_t num_blocks = 0;
  for (const KvGroupSpec& group : options_.groups) {
    if (!HoldsOwnTokens(group)) {
      num_blocks += CeilDiv(num_encoder_tokens, options_.block_size);
      continue;
    }
    num_blocks += num_columns - std::min(num_columns, FirstNeededBlock(group, num_committed,
                                                                       options_.block_size));
  }
  return num_blocks;
}

int SequenceBlocks::EndOfRow(const SavedSequence& saved, int group) const {
  if (!HoldsOwnTokens(options_.groups[group])) {
    return CeilDiv(saved.num_encoder_tokens, options_.block_size);
  }
  return std::max(NumColumns(saved.num_tokens), saved.first_columns[group]);
}

int64_t SequenceBlocks::NumBlocksToLoad(const SavedSequence& saved) const {
  CHECK_EQ(saved.first_columns.size(), options_.groups.size())
      << "saved by a manager with different groups";
  int64_t num_blocks = 0;
  for (int group = 0; group < num_groups(); ++group) {
    num_blocks += EndOfRow(saved, group) - saved.first_columns[group];
  }
  return num_blocks;
}

int SequenceBlocks::min_tokens(SlotId slot) const {
  int num_tokens = 0;
  for (int group = 0; group < num_groups(); ++group) {
    num_tokens = std::max(num_tokens,
                          ShortestWithFirstBlock(options_.groups[group], tables_.first(slot, group),
                                                 options_.block_size));
  }
  return num_tokens;
}

// ---- Rows.

SequenceBlocks::Sequence& SequenceBlocks::Start(SlotId slot) {
  Sequence& started = (*this)[slot];
  started = {.is_live = true};
  ++num_sequences_;
  return started;
}

void SequenceBlocks::AllocatePlanned(absl::Span<BlockId> blocks) {
  const absl::Status status = cache_.AllocateReserved(blocks);
  CHECK(status.ok()) << "a planned allocation failed: " << status;
}

void SequenceBlocks::FillRow(SlotId slot, int group, int first, absl::Span<const BlockId> hits,
                             int end) {
  tables_.StartAt(slot, group, first);
  const absl::Span<BlockId> row = tables_.Extend(slot, group, end - first);
  absl::c_copy(hits, row.begin());
  AllocatePlanned(row.subspan(hits.size()));
}

void SequenceBlocks::GrowTo(SlotId slot, int num_columns) {
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    const int num_lacking = num_columns - tables_.end(slot, group);
    if (num_lacking <= 0) continue;
    AllocatePlanned(tables_.Extend(slot, group, num_lacking));
  }
  (*this)[slot].num_tokens_with_columns = TokensWithColumns(num_columns);
}

void SequenceBlocks::ShrinkTo(SlotId slot, int num_columns) {
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    // Releases the last block first: children before parents. The pool reallocates free blocks in
    // the opposite order, so a row that grows again usually has ascending blocks.
    const int end = std::max(num_columns, tables_.first(slot, group));
    while (tables_.end(slot, group) > end) Release(tables_.RemoveBack(slot, group));
  }
  (*this)[slot].num_tokens_with_columns = TokensWithColumns(num_columns);
}

void SequenceBlocks::Fork(SlotId from, SlotId to) {
  Sequence& parent = (*this)[from];
  Sequence& child = Start(to);
  child.num_tokens = parent.num_committed;
  child.num_committed = parent.num_committed;
  child.num_encoder_tokens = parent.num_encoder_tokens;
  child.has_encoder = parent.has_encoder;
  if (cache_.is_on()) content_.Copy(from, to, parent.num_committed);
  const int num_shared = CeilDiv(parent.num_committed, options_.block_size);
  for (int group = 0; group < num_groups(); ++group) {
    const int first = tables_.first(from, group);
    const int end = HoldsOwnTokens(options_.groups[group]) ? std::max(num_shared, first)
                                                           : tables_.end(from, group);
    const absl::Span<const BlockId> blocks =
        tables_.blocks(from, group).subspan(first, end - first);
    for (const BlockId block : blocks) cache_.Share(block);
    FillRow(to, group, first, blocks, end);
  }
  if (options_.num_lookahead_tokens > 0) {
    MakeOwn(to, child.num_tokens);
  } else {
    child.may_share_tail = true;
    parent.may_share_tail = true;
  }
  GrowTo(to, NumColumns(child.num_tokens));
}

void SequenceBlocks::Load(SlotId slot, const SavedSequence& saved) {
  Sequence& loaded = Start(slot);
  loaded.is_swapping_in = true;
  loaded.num_tokens = saved.num_tokens;
  loaded.num_committed = saved.num_tokens;
  loaded.num_encoder_tokens = saved.num_encoder_tokens;
  loaded.has_encoder = saved.has_encoder;
  for (int group = 0; group < num_groups(); ++group) {
    FillRow(slot, group, saved.first_columns[group], /*hits=*/{}, EndOfRow(saved, group));
  }
  loaded.num_tokens_with_columns = TokensWithColumns(NumColumns(saved.num_tokens));
  if (!cache_.is_on()) return;
  content_.Load(slot, saved.content);
  // Prefixes were forgotten while the sequence was swapped out.
  if (saved.num_forgets != num_forgets_) content_.Forget(slot);
}

SavedSequence SequenceBlocks::Save(SlotId slot) const {
  const Sequence& saved = (*this)[slot];
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

void SequenceBlocks::End(SlotId slot) {
  for (int group = 0; group < num_groups(); ++group) {
    while (tables_.end(slot, group) > tables_.first(slot, group)) {
      Release(tables_.RemoveBack(slot, group));
    }
    tables_.Reset(slot, group);
  }
  (*this)[slot] = {};
  --num_sequences_;
}

// ---- Shared blocks.

void SequenceBlocks::Release(BlockId block) {
  if (!copies_.empty() && pool().ref_count(block) == 1) {
    // The destination of the pending copy has no other user, so the copy is no longer needed.
    if (const std::optional<BlockId> source = copies_.Drop(block)) cache_.Release(*source);
  }
  cache_.Release(block);
}

bool SequenceBlocks::IsOnlyUser(BlockId block) const {
  // A pending copy does not count as a user: it reads the block before the next step writes to it.
  return pool().ref_count(block) - copies_.NumFrom(block) == 1;
}

int SequenceBlocks::NumToCopy(SlotId slot, int num_kept, int end_column) const {
  int num_to_copy = 0;
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    const absl::Span<const BlockId> row = tables_.blocks(slot, group);
    const int first = std::max(num_kept / options_.block_size, tables_.first(slot, group));
    for (int i = first; i < end_column; ++i) num_to_copy += !IsOnlyUser(row[i]);
  }
  return num_to_copy;
}

int SequenceBlocks::NumFreedBeyond(SlotId slot, int end_column) const {
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

void SequenceBlocks::MakeOwn(SlotId slot, int num_kept) {
  const int column = num_kept / options_.block_size;
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    for (int i = std::max(column, tables_.first(slot, group)); i < tables_.end(slot, group); ++i) {
      const BlockId block = tables_.blocks(slot, group)[i];
      if (IsOnlyUser(block)) {
        cache_.Forget(block);  // the content is about to change
        continue;
      }
      BlockId own;
      AllocatePlanned(absl::MakeSpan(&own, 1));
      tables_.Replace(slot, group, i, own);
      if (int64_t{i} * options_.block_size < num_kept) {
        AddCopy(block, own);
      } else {
        Release(block);
      }
    }
  }
}

void SequenceBlocks::AddCopy(BlockId source, BlockId destination) {
  const BlockId origin = copies_.Origin(source);
  if (origin != source) {
    cache_.Share(origin);
    Release(source);
  }
  copies_.Add(origin, destination);
}

absl::Span<const BlockCopy> SequenceBlocks::TakeCopies() {
  const absl::Span<const BlockCopy> taken = copies_.Take();
  for (const BlockCopy& copy : taken) Release(BlockId(copy.src));
  return taken;
}

void SequenceBlocks::Hold(BlockId block) {
  cache_.Share(block);
  ++holds_[block];
}

void SequenceBlocks::Drop(BlockId block) {
  const auto held = holds_.find(block);
  CHECK(held != holds_.end()) << "Drop of block " << block << ", which is not held";
  if (--held->second == 0) holds_.erase(held);
  Release(block);
}

int SequenceBlocks::num_holds(BlockId block) const {
  const auto held = holds_.find(block);
  return held == holds_.end() ? 0 : held->second;
}

}  // namespace reprise
