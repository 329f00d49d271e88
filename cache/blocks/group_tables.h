// The block tables of all groups of a model, with one row per slot. Records the changes since the
// last TakeUpdates(), for the owner of the device's tables.
//
//   GroupTables tables =
//       *GroupTables::Create({.num_groups = 2, .num_slots = 256, .max_blocks = 512});
//   absl::Span<BlockId> added = tables.Extend(slot, /*group=*/0, 3);  // fill immediately
//   tables.RemoveFront(slot, /*group=*/1);                            // left the window
//   Send(tables.TakeUpdates());
//
// A row has blocks in the columns [first, end) and null blocks in all other columns. Columns before
// `first` have left the group's window. Columns from `end` have not been reached yet.
//
// Updates contain the new blocks of a row, the blocks after a replaced block, and null blocks for
// blocks that left the window. Two kinds of changes are omitted:
//   - Columns from `end`. The device never reads them; its entries there may name blocks that now
//     belong to other sequences.
//   - Emptied rows. The runner clears the row of a slot before the slot is reused
//     (runner/slots/refill.h).
//
// Thread safety: not thread-safe; one owner. Cost: O(1) per call and per block; TakeUpdates() is
// linear in the changed rows and its result. After Create(), allocates only for a list of updates
// longer than all previous ones.

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
  int num_slots = 0;   // rows per table
  int max_blocks = 0;  // columns per table
};

// Invariants, checked by CheckInvariants():
//   1. Columns [first, end) of a row have no null blocks; all other columns have null blocks.
//   2. sent_first <= first, sent_first <= sent_valid_end <= end, sent_valid_end <= sent_end. A row
//      with unsent changes is in pending_.
//   3. No block occurs twice in the rows of one slot.
class GroupTables {
 public:
  // Errors: InvalidArgument, naming the field.
  static absl::StatusOr<GroupTables> Create(const GroupTablesOptions& options);

  GroupTables(GroupTables&&) = default;
  GroupTables& operator=(GroupTables&&) = default;

  // REQUIRES, for all functions: the slot and the group exist.

  int first(SlotId slot, int group) const { return row(slot, group).first; }
  int end(SlotId slot, int group) const { return row(slot, group).end; }

  // The blocks of columns [0, end), with null blocks in columns that have left the window. Valid
  // until the row changes.
  absl::Span<const BlockId> blocks(SlotId slot, int group) const {
    return tables_[group].row(slot).first(row(slot, group).end);
  }

  // Makes an empty row begin at column `first`. REQUIRES: the row is empty, first <= max_blocks.
  void StartAt(SlotId slot, int group, int first);

  // Adds `num_blocks` columns at the end of the row and returns them. The caller fills them before
  // any other call. REQUIRES: the row has enough columns.
  absl::Span<BlockId> Extend(SlotId slot, int group, int num_blocks);

  // Replaces the block in a column. REQUIRES: first <= column < end.
  void Replace(SlotId slot, int group, int column, BlockId block);

  // Removes and returns the first or the last block of the row. REQUIRES: first < end.
  BlockId RemoveFront(SlotId slot, int group);
  BlockId RemoveBack(SlotId slot, int group);

  // Resets a row without blocks when its slot ends. REQUIRES: first == end.
  void Reset(SlotId slot, int group);

  // Returns the changes since the last call. Each (group, slot, column) occurs at most once, so the
  // changes may be applied in any order. The columns of a row are in ascending order. Valid until
  // the next call.
  absl::Span<const BlockTableUpdate> TakeUpdates();

  const BlockTable& table(int group) const { return tables_[group]; }
  int num_groups() const { return static_cast<int>(tables_.size()); }
  int num_slots() const { return tables_[0].num_slots(); }
  int max_blocks() const { return tables_[0].max_blocks(); }

  // Checks the invariants above. CHECK-fails with the number of the violated invariant. O(tables),
  // allocates.
  void CheckInvariants() const;

 private:
  struct Row {
    int first = 0;
    int end = 0;
    // On the device, columns [sent_first, sent_end) have no null blocks. Those in [max(first,
    // sent_first), sent_valid_end) are this row's current blocks.
    int sent_first = 0;
    int sent_valid_end = 0;
    int sent_end = 0;
    bool is_pending = false;  // in the list pending_
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
