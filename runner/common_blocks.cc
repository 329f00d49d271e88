#include "reprise/runner/common_blocks.h"

#include <algorithm>

#include "glog/logging.h"

namespace reprise {

CommonBlocks::CommonBlocks(const CommonBlocksOptions& options)
    : options_(options),
      table_(static_cast<size_t>(options.num_slots) * options.max_blocks),
      rows_(options.num_slots),
      reference_(options.max_blocks) {}

void CommonBlocks::Follow(const ScheduledBatch& batch) {
  for (const SlotId slot : batch.leaves) rows_[slot.value()] = {};
  for (const BlockTableUpdate& update : batch.updates) {
    if (update.group != options_.group) continue;
    DCHECK_LT(update.column, options_.max_blocks);
    const int slot = update.slot.value();
    Row& row = rows_[slot];
    table_row(slot)[update.column] = update.block.value();
    row.num_columns = std::max(row.num_columns, update.column + 1);
    row.num_equal = std::min(row.num_equal, update.column);
    Extend(slot);
  }
}

void CommonBlocks::Extend(int slot) {
  Row& row = rows_[slot];
  const int end = std::min(row.num_columns, reference_columns_);
  const int32_t* blocks = table_row(slot);
  while (row.num_equal < end && blocks[row.num_equal] == reference_[row.num_equal]) {
    ++row.num_equal;
  }
}

void CommonBlocks::RefersTo(int slot) {
  reference_columns_ = rows_[slot].num_columns;
  std::copy_n(table_row(slot), reference_columns_, reference_.begin());
  ++num_references_;
  for (int s = 0; s < options_.num_slots; ++s) {
    rows_[s].num_equal = 0;
    Extend(s);
  }
}

int CommonBlocks::Count(absl::Span<const ScheduledRow> rows) {
  if (rows.empty()) return 0;
  const int first = rows[0].slot.value();
  if (rows.size() == 1) return rows_[first].num_columns;
  const auto least = [&] {
    int num_equal = rows_[first].num_equal;
    for (const ScheduledRow& row : rows) {
      num_equal = std::min(num_equal, rows_[row.slot.value()].num_equal);
    }
    return num_equal;
  };
  const int num_equal = least();
  // Rows with different numbers differ from each other at the smaller number, and a row shares at
  // most its own columns.
  if (rows_[first].num_columns == num_equal) return num_equal;
  for (const ScheduledRow& row : rows) {
    if (rows_[row.slot.value()].num_equal != num_equal) return num_equal;
  }
  RefersTo(first);
  return least();
}

}  // namespace reprise
