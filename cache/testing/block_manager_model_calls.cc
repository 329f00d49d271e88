// BlockManagerModel: calls that add, lengthen, fork and shorten sequences.

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/divisor.h"
#include "reprise/cache/group_retention.h"
#include "reprise/cache/testing/block_manager_model.h"
#include "reprise/cache/testing/model_values.h"

namespace reprise {

namespace {

using absl::StatusCode;

}  // namespace

void BlockManagerModel::AddRoom() {
  call_ = "Add room";
  const SlotId slot = AnyEmptySlot();
  const int count = AnyCount();
  const std::vector<int64_t> before = Snapshot();
  std::vector<StatusCode> codes;
  const int64_t num_blocks =
      IsSlot(slot) && count >= 0 && count <= num_row_tokens_ ? manager_->NumBlocksFor(count, 0) : 0;
  const int num_pool = options_.manager.num_blocks - 1 - options_.manager.num_reserved_blocks;
  if (!IsSlot(slot)) {
    codes = {StatusCode::kInvalidArgument};
  } else if (live_.contains(slot)) {
    codes = {StatusCode::kAlreadyExists};
  } else if (count < 0 || count > num_row_tokens_ || num_blocks > num_pool) {
    codes = {StatusCode::kInvalidArgument};
  } else if (num_blocks > manager_->pool().num_allocatable()) {
    codes = {StatusCode::kResourceExhausted};
  } else {
    codes = {StatusCode::kOk};
  }
  const absl::Status status = manager_->Add(slot, count);
  Expect(status, codes, before);
  if (!status.ok()) return;
  Sequence& added = live_[slot];
  added.origin.epoch = epoch_;
  Grow(added, count);
}

void BlockManagerModel::AppendBatch() {
  call_ = "AppendBatch";
  std::vector<SlotAppend> batch(1 + Below(4));
  std::map<SlotId, int64_t> lengths;
  for (SlotAppend& append : batch) {
    append = {.slot = AnySlot(), .num_tokens = choices_->OneIn(4) ? AnyCount() : 1 + Below(2)};
    if (live_.contains(append.slot) && live_[append.slot].is_swapping_out) append.num_tokens = 0;
  }
  const int num_own = static_cast<int>(absl::c_count_if(manager_->groups(), HoldsOwnTokens));
  int64_t num_lacking = 0;
  std::optional<StatusCode> refusal;
  for (const SlotAppend& append : batch) {
    if (!IsSlot(append.slot)) {
      refusal = StatusCode::kInvalidArgument;
    } else if (!live_.contains(append.slot)) {
      refusal = StatusCode::kNotFound;
    } else if (append.num_tokens < 0) {
      refusal = StatusCode::kInvalidArgument;
    } else {
      const Sequence& now = live_[append.slot];
      int64_t& length = lengths.try_emplace(append.slot, now.num_tokens()).first->second;
      const int64_t longer = length + append.num_tokens;
      if (longer > num_row_tokens_ ||
          manager_->NumBlocksFor(static_cast<int>(longer), static_cast<int>(length),
                                 now.origin.num_encoder_tokens) > options_.manager.num_blocks - 1) {
        refusal = StatusCode::kInvalidArgument;
      } else {
        length = longer;
      }
    }
    if (refusal.has_value()) break;
  }
  for (const auto& [slot, length] : lengths) {
    num_lacking += (manager_->NumBlocksFor(static_cast<int>(length), 0) -
                    manager_->NumBlocksFor(live_[slot].num_tokens(), 0));
  }
  // Each sequence may need to copy the block that it writes to, in each group.
  const int64_t num_copied = options_.manager.num_lookahead_tokens > 0
                                 ? 0
                                 : static_cast<int64_t>(lengths.size()) * num_own;
  const int num_free = manager_->pool().num_allocatable_reserved();
  std::vector<StatusCode> codes;
  if (refusal.has_value()) {
    codes = {*refusal};
  } else {
    if (num_lacking <= num_free) codes.push_back(StatusCode::kOk);
    if (num_lacking + num_copied > num_free) codes.push_back(StatusCode::kResourceExhausted);
  }
  const std::vector<int64_t> before = Snapshot();
  const bool had_copies = manager_->has_copies();
  const absl::Status status = manager_->AppendBatch(batch);
  Expect(status, codes, before);
  if (!status.ok()) return;
  counts_["copies on write"] += !had_copies && manager_->has_copies();
  for (const auto& [slot, length] : lengths) Grow(live_[slot], static_cast<int>(length));
}

void BlockManagerModel::Commit() {
  call_ = "Commit";
  const std::optional<SlotId> slot = AnySequence();
  if (!slot.has_value()) return;
  Sequence& sequence = live_[*slot];
  const int num_new = Below(sequence.num_written - sequence.num_committed + 1);
  const int num_null_before = NumNull(*slot);
  const absl::Status status = manager_->Commit(
      *slot, absl::MakeConstSpan(sequence.tokens).subspan(sequence.num_committed, num_new));
  CHECK(status.ok()) << status;
  sequence.num_committed += num_new;
  counts_["blocks that left a window"] += NumNull(*slot) - num_null_before;
  if (sequence.encoder_is_written && choices_->OneIn(2)) {
    CHECK(manager_->CommitEncoder(*slot).ok());
    sequence.encoder_is_committed = true;
  }
  Remember(sequence);
}

void BlockManagerModel::CommitUnknown() {
  call_ = "CommitUnknown";
  const std::optional<SlotId> slot = AnySequence();
  if (!slot.has_value()) return;
  Sequence& sequence = live_[*slot];
  const int num_new = Below(sequence.num_written - sequence.num_committed + 1);
  CHECK(manager_->CommitUnknown(*slot, num_new).ok());
  sequence.num_committed += num_new;
  if (num_new > 0) sequence.is_known = false;
}

void BlockManagerModel::Fork() {
  call_ = "Fork";
  const SlotId from = AnySlot();
  const SlotId to = AnyEmptySlot();
  const std::vector<int64_t> before = Snapshot();
  std::vector<StatusCode> codes;
  if (!IsSlot(from)) {
    codes = {StatusCode::kInvalidArgument};
  } else if (!live_.contains(from)) {
    codes = {StatusCode::kNotFound};
  } else if (live_[from].is_swapping_in) {
    codes = {StatusCode::kFailedPrecondition};
  } else if (!IsSlot(to)) {
    codes = {StatusCode::kInvalidArgument};
  } else if (live_.contains(to)) {
    codes = {StatusCode::kAlreadyExists};
  } else {
    codes = {StatusCode::kOk};
    const int num_lookahead = options_.manager.num_lookahead_tokens;
    // The look-ahead, plus the block that contains its first token.
    const int64_t at_most = (num_lookahead / block_size_ + 2) * manager_->num_groups();
    if (num_lookahead > 0 && at_most > manager_->pool().num_allocatable()) {
      codes.push_back(StatusCode::kResourceExhausted);
      codes.push_back(StatusCode::kInvalidArgument);
    }
  }
  const absl::Status status = manager_->Fork(from, to);
  Expect(status, codes, before);
  if (!status.ok()) return;
  Sequence child = live_[from];
  child.tokens.resize(child.num_committed);
  child.values.resize(child.num_committed);
  child.num_written = child.num_committed;
  child.is_swapping_out = false;
  live_[to] = std::move(child);
  ++counts_["forks"];
}

// With look-ahead, all tokens that may be written after the truncation must be in blocks without
// another user. Blocks past that range that only the sequence uses are released first. (Sources of
// dropped copies may also become free; they are not counted here.)
bool BlockManagerModel::MayLackBlocksToTruncate(SlotId slot, int num_tokens) const {
  const int num_reached =
      std::min(num_tokens + options_.manager.num_lookahead_tokens, num_row_tokens_);
  const int first = num_tokens / block_size_;
  const int end = CeilDiv(num_reached, block_size_);
  const BlockPool& pool = manager_->pool();
  std::map<BlockId, int> num_holders;  // number of table entries
  for (const auto& [other, sequence] : live_) {
    for (int group = 0; group < manager_->num_groups(); ++group) {
      for (const BlockId block : manager_->blocks(other, group)) ++num_holders[block];
    }
  }
  int num_needed = 0;
  int num_freed = 0;
  for (int group = 0; group < manager_->num_groups(); ++group) {
    if (!HoldsOwnTokens(manager_->groups()[group])) continue;
    const absl::Span<const BlockId> row = manager_->blocks(slot, group);
    for (int column = std::max(first, manager_->first_column(slot, group));
         column < static_cast<int>(row.size()); ++column) {
      const BlockId block = row[column];
      if (column < end) {
        num_needed += num_holders[block] > 1 || manager_->num_holds(block) > 0;
      } else {
        num_freed += pool.ref_count(block) == 1;
      }
    }
  }
  return num_needed > num_freed + pool.num_allocatable_reserved();
}

void BlockManagerModel::Truncate() {
  call_ = "Truncate";
  const SlotId slot = AnySlot();
  const auto found = live_.find(slot);
  if (found != live_.end() && found->second.is_swapping_out) return;
  const int count = found == live_.end() || choices_->OneIn(4)
                        ? AnyCount()
                        : found->second.num_tokens() - Below(3 * block_size_);
  const std::vector<int64_t> before = Snapshot();
  std::vector<StatusCode> codes;
  if (!IsSlot(slot)) {
    codes = {StatusCode::kInvalidArgument};
  } else if (found == live_.end()) {
    codes = {StatusCode::kNotFound};
  } else if (found->second.is_swapping_in) {
    codes = {StatusCode::kFailedPrecondition};
  } else if (count < 0 || count > found->second.num_tokens()) {
    codes = {StatusCode::kInvalidArgument};
  } else if (count < found->second.num_committed && count < manager_->min_tokens(slot)) {
    codes = {StatusCode::kFailedPrecondition};
    ++counts_["truncations refused by a window"];
  } else {
    codes = {StatusCode::kOk};
    if (options_.manager.num_lookahead_tokens > 0 && count < found->second.num_committed &&
        MayLackBlocksToTruncate(slot, count)) {
      codes.push_back(StatusCode::kResourceExhausted);
    }
  }
  const absl::Status status = manager_->Truncate(slot, count);
  Expect(status, codes, before);
  if (!status.ok()) return;
  Sequence& sequence = found->second;
  counts_["truncations of content"] += count < sequence.num_committed;
  sequence.tokens.resize(count);
  sequence.values.resize(count);
  sequence.num_written = std::min(sequence.num_written, count);
  sequence.num_committed = std::min(sequence.num_committed, count);
}

void BlockManagerModel::Leave(SlotId slot) {
  live_.erase(slot);
  left_.push_back(slot);
}

void BlockManagerModel::Free() {
  call_ = "Free";
  const SlotId slot = AnySlot();
  if (live_.contains(slot) && live_[slot].is_swapping_out) return;
  const std::vector<int64_t> before = Snapshot();
  const absl::Status status = manager_->Free(slot);
  Expect(status,
         {!IsSlot(slot)                ? StatusCode::kInvalidArgument
          : !live_.contains(slot)      ? StatusCode::kNotFound
          : live_[slot].is_swapping_in ? StatusCode::kFailedPrecondition
                                       : StatusCode::kOk},
         before);
  if (status.ok()) Leave(slot);
}

// Makes calls, most of them with invalid ids or sizes.
void BlockManagerModel::BadCall() {
  call_ = "a bad call";
  const std::vector<int64_t> before = Snapshot();
  const SlotId slot = AnySlot();
  const bool is_live = live_.contains(slot);
  const StatusCode none = IsSlot(slot) ? StatusCode::kNotFound : StatusCode::kInvalidArgument;
  std::vector<int32_t> row(options_.manager.max_blocks);
  const int group = Below(manager_->num_groups() + 2) - 1;
  const bool is_group = group >= 0 && group < manager_->num_groups();
  Expect(manager_->WriteRow(slot, group, absl::MakeSpan(row)),
         {!is_live   ? none
          : is_group ? StatusCode::kOk
                     : StatusCode::kInvalidArgument},
         before);
  if (is_live) {
    const int num_uncommitted = live_[slot].num_tokens() - live_[slot].num_committed;
    const std::vector<int32_t> tokens(num_uncommitted + 1 + Below(3));
    const bool is_swapping_in = live_[slot].is_swapping_in;
    const StatusCode refused =
        is_swapping_in ? StatusCode::kFailedPrecondition : StatusCode::kInvalidArgument;
    Expect(manager_->Commit(slot, tokens), {refused}, before);
    Expect(manager_->CommitUnknown(slot, -1), {refused}, before);
    if (is_swapping_in || live_[slot].origin.num_encoder_tokens == 0) {
      Expect(manager_->CommitEncoder(slot), {refused}, before);
    }
  } else {
    Expect(manager_->Commit(slot, {}), {none}, before);
    Expect(manager_->CommitEncoder(slot), {none}, before);
  }
  Expect(store_->PlanIn(SequenceId(-1), slot), {StatusCode::kNotFound}, before);
  Expect(store_->Drop(SequenceId(-1)), {StatusCode::kNotFound}, before);
}

void BlockManagerModel::ForgetPrefixes() {
  call_ = "ForgetPrefixes";
  manager_->ForgetPrefixes();
  // The content of live sequences belongs to the old weights: new sequences must not find it.
  ++epoch_;
  for (auto& [slot, sequence] : live_) sequence.is_known = false;
  // Stored sequences return with their content, but their keys belong to the old weights.
  for (auto& [id, sequence] : stored_) sequence.is_known = false;
  ++counts_["prefixes forgotten"];
}

}  // namespace reprise
