// The block tables of all groups of a model, with a row a slot, and their changes since the last
// TakeUpdates(), for the owner of the device's copies.
//
//   GroupTables tables =
//       *GroupTables::Create({.num_groups = 2, .num_slots = 256, .max_blocks = 512});
//   absl::Span<BlockId> added = tables.Extend(slot, /*group=*/0, 3);  // to be filled at once
//   tables.RemoveFront(slot, /*group=*/1);                            // left the window
//   Send(tables.TakeUpdates());
//
// A row holds blocks in the columns [first, end) and null blocks in all others: columns before
// `first` have left the group's window, columns from `end` on are not reached yet.
//
// Updates contain a row's new blocks, and null blocks in place of those that left. They do not
// contain columns from `end` on, which are never read and may name blocks that have other owners by
// now, nor rows that were emptied: a slot that leaves becomes null on the device
// (runner/slots/refill.h) before it is used again.
//
// Thread safety: none; one owner. Cost: O(1) a call and a block; TakeUpdates() is linear in its
// result. Allocates after Create() only for a list of updates longer than all before.

#ifndef REPRISE_CACHE_BLOCKS_GROUP_TABLES_H_
#define REPRISE_CACHE_BLOCKS_GROUP_TABLES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/tables/block_table.h"
#include "reprise/cache/tables/block_table_update.h"

namespace reprise {

struct GroupTablesOptions {
  int num_groups = 1;
  int num_slots = 0;   // rows of each table
  int max_blocks = 0;  // columns of each
};

// Invariants, checked by CheckInvariants():
//   1. Columns [first, end) of a row are not null blocks, all others are.
//   2. sent_first <= first, sent_first <= sent_valid_end <= end, sent_valid_end <= sent_end; a row
//      with something to send is in the list of those.
//   3. No block occurs twice in one slot's rows of all groups.
class GroupTables {
 public:
  // Errors: InvalidArgument, naming the field.
  static absl::StatusOr<GroupTables> Create(const GroupTablesOptions& options);

  GroupTables(GroupTables&&) = default;
  GroupTables& operator=(GroupTables&&) = default;

  // REQUIRES, all: the slot and the group are of these tables.

  int first(SlotId slot, int group) const { return row(slot, group).first; }
  int end(SlotId slot, int group) const { return row(slot, group).end; }

  // Columns [0, end), the null ones of blocks that left included. Valid until the row changes.
  absl::Span<const BlockId> blocks(SlotId slot, int group) const {
    return tables_[group].row(slot).first(row(slot, group).end);
  }

  // Lets an empty row begin at column `first`. REQUIRES: the row is empty, first <= max_blocks.
  void StartAt(SlotId slot, int group, int first);

  // Adds `num_blocks` columns at the row's end, to be filled before any other call. REQUIRES: they
  // fit.
  absl::Span<BlockId> Extend(SlotId slot, int group, int num_blocks);

  // Puts another block into a column. REQUIRES: first <= column < end.
  void Replace(SlotId slot, int group, int column, BlockId block);

  // Removes the first or the last block of the row. REQUIRES: first < end.
  BlockId RemoveFront(SlotId slot, int group);
  BlockId RemoveBack(SlotId slot, int group);

  // Resets an empty row, because its slot leaves. REQUIRES: first == end.
  void Reset(SlotId slot, int group);

  // Each (group, slot, column) at most once, so that they may be applied in any order; those of a
  // row ascend. Valid until the next call.
  absl::Span<const BlockTableUpdate> TakeUpdates();

  const BlockTable& table(int group) const { return tables_[group]; }
  int num_groups() const { return static_cast<int>(tables_.size()); }
  int num_slots() const { return tables_[0].num_slots(); }
  int max_blocks() const { return tables_[0].max_blocks(); }

  // Proves the invariants above; CHECK-fails with the number of the broken one. O(tables),
  // allocates.
  void CheckInvariants() const;

 private:
  struct Row {
    int first = 0;
    int end = 0;
    // The device's copy has no null blocks in [sent_first, sent_end); they are this row's blocks in
    // the part of it before sent_valid_end that is not before `first`.
    int sent_first = 0;
    int sent_valid_end = 0;
    int sent_end = 0;
    bool is_pending = false;  // in pending_
  };
  struct RowName {
    SlotId slot;
    int32_t group;
  };

  explicit GroupTables(std::vector<BlockTable> tables);

  const Row& row(SlotId slot, int group) const { return rows_[RowIndex(slot, group)]; }
  Row& row(SlotId slot, int group) { return rows_[RowIndex(slot, group)]; }
  size_t RowIndex(SlotId slot, int group) const {
    return static_cast<size_t>(slot.value()) * tables_.size() + group;
  }
  void MarkPending(SlotId slot, int group);

  std::vector<BlockTable> tables_;  // by group
  std::vector<Row> rows_;           // by slot, then group
  std::vector<RowName> pending_;
  std::vector<BlockTableUpdate> updates_;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_GROUP_TABLES_H_
