#include "reprise/cache/blocks/group_tables.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// Sufficient for one step of most engines. A longer list of updates grows the buffer.
constexpr int64_t kReservedUpdates = 4096;

}  // namespace

absl::StatusOr<GroupTables> GroupTables::Create(const GroupTablesOptions& options) {
  if (options.num_groups < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_groups must be positive: expected at least 1, got ", options.num_groups));
  }
  std::vector<BlockTable> tables;
  for (int group = 0; group < options.num_groups; ++group) {
    REPRISE_ASSIGN_OR_RETURN(
        BlockTable table,
        BlockTable::Create({.num_slots = options.num_slots, .max_blocks = options.max_blocks}));
    tables.push_back(std::move(table));
  }
  return GroupTables(std::move(tables));
}

GroupTables::GroupTables(std::vector<BlockTable> tables)
    : tables_(std::move(tables)), rows_(tables_.size() * tables_[0].num_slots()) {
  pending_.reserve(rows_.size());
  updates_.reserve(std::min<int64_t>(static_cast<int64_t>(rows_.size()) * max_blocks(),
                                     std::max<int64_t>(kReservedUpdates, rows_.size())));
}

void GroupTables::StartAt(SlotId slot, int group, int first) {
  Row& empty = row(slot, group);
  CHECK_EQ(empty.end, 0) << "slot " << slot << ", group " << group << " is not empty";
  CHECK(first >= 0 && first <= max_blocks()) << first;
  empty.first = empty.end = first;
  empty.sent_first = empty.sent_valid_end = empty.sent_end = first;
}

absl::Span<BlockId> GroupTables::Extend(SlotId slot, int group, int num_blocks) {
  Row& extended = row(slot, group);
  CHECK(num_blocks >= 0 && num_blocks <= max_blocks() - extended.end) << num_blocks;
  const absl::Span<BlockId> added =
      tables_[group].mutable_row(slot).subspan(extended.end, num_blocks);
  extended.end += num_blocks;
  if (num_blocks > 0) MarkPending(slot, group);
  return added;
}

void GroupTables::Replace(SlotId slot, int group, int column, BlockId block) {
  Row& changed = row(slot, group);
  CHECK(changed.first <= column && column < changed.end) << column;
  tables_[group].mutable_row(slot)[column] = block;
  // Only one range of valid device entries is tracked, so the few blocks after the column are sent
  // again.
  changed.sent_valid_end = std::min(changed.sent_valid_end, column);
  MarkPending(slot, group);
}

BlockId GroupTables::RemoveFront(SlotId slot, int group) {
  Row& shortened = row(slot, group);
  CHECK_LT(shortened.first, shortened.end);
  MarkPending(slot, group);
  return std::exchange(tables_[group].mutable_row(slot)[shortened.first++], kNullBlock);
}

BlockId GroupTables::RemoveBack(SlotId slot, int group) {
  Row& shortened = row(slot, group);
  CHECK_LT(shortened.first, shortened.end);
  --shortened.end;
  shortened.sent_valid_end = std::min(shortened.sent_valid_end, shortened.end);
  return std::exchange(tables_[group].mutable_row(slot)[shortened.end], kNullBlock);
}

void GroupTables::Reset(SlotId slot, int group) {
  Row& empty = row(slot, group);
  CHECK_EQ(empty.first, empty.end) << "slot " << slot << ", group " << group << " holds blocks";
  const bool is_pending = empty.is_pending;  // the row stays in the list, with nothing to send
  empty = {.is_pending = is_pending};
}

absl::Span<const BlockTableUpdate> GroupTables::TakeUpdates() {
  updates_.clear();
  for (const auto [slot, group] : pending_) {
    Row& taken = row(slot, group);
    const absl::Span<const BlockId> entries = tables_[group].row(slot);
    const auto send = [&, slot = slot, group = group](int column) {
      updates_.push_back(
          {.slot = slot, .column = column, .block = entries[column], .group = group});
    };
    const int end_of_null = std::min(taken.first, taken.sent_end);
    for (int column = taken.sent_first; column < end_of_null; ++column) send(column);
    const int first_new = std::max(taken.first, taken.sent_valid_end);
    for (int column = first_new; column < taken.end; ++column) send(column);
    taken.sent_first = taken.first;
    taken.sent_valid_end = taken.end;
    taken.sent_end = std::max(taken.sent_end, taken.end);
    taken.is_pending = false;
  }
  pending_.clear();
  return updates_;
}

void GroupTables::MarkPending(SlotId slot, int group) {
  Row& marked = row(slot, group);
  if (marked.is_pending) return;
  marked.is_pending = true;
  pending_.push_back({slot, group});
}

void GroupTables::CheckInvariants() const {
  absl::flat_hash_set<BlockId> of_this_slot;
  for (int i = 0; i < num_slots(); ++i) {
    const SlotId slot(i);
    of_this_slot.clear();
    for (int group = 0; group < num_groups(); ++group) {
      const Row& checked = row(slot, group);
      const auto where = [&] { return absl::StrCat("slot ", i, ", group ", group); };
      CHECK(0 <= checked.first && checked.first <= checked.end && checked.end <= max_blocks())
          << "invariant 1, " << where();
      const absl::Span<const BlockId> entries = tables_[group].row(slot);
      for (int column = 0; column < max_blocks(); ++column) {
        const bool holds = column >= checked.first && column < checked.end;
        CHECK_EQ(entries[column] != kNullBlock, holds)
            << "invariant 1, " << where() << ", column " << column;
        if (!holds) continue;
        CHECK(of_this_slot.insert(entries[column]).second)
            << "invariant 3, " << where() << ", block " << entries[column];
      }
      CHECK(checked.sent_first <= checked.first && checked.sent_first <= checked.sent_valid_end &&
            checked.sent_valid_end <= checked.end && checked.sent_valid_end <= checked.sent_end)
          << "invariant 2, " << where();
      const bool has_news = checked.sent_first < std::min(checked.first, checked.sent_end) ||
                            std::max(checked.first, checked.sent_valid_end) < checked.end;
      CHECK(checked.is_pending || !has_news) << "invariant 2, " << where();
    }
  }
  for (const RowName& name : pending_) {
    CHECK(row(name.slot, name.group).is_pending) << "invariant 2, slot " << name.slot;
  }
}

}  // namespace reprise
