// Counts the leading blocks that the block tables of a step's rows have in common. The host tracks
// them from the block table updates, so that a step does not compare whole tables.
//
//   CommonBlocks blocks({.num_slots = 8, .max_blocks = 64});
//   blocks.Follow(batch);                        // each batch, before Count() of its rows
//   const int num_blocks = blocks.Count(batch.rows);
//
// One row of blocks is the reference. For each slot, the class maintains the number of leading
// columns that equal the reference. The rows of a step have at least the minimum of these numbers
// in common:
//
//   reference  7 2 9 4       slot 0  7 2 9 4 5   4
//                            slot 1  7 2 6       2      slots 0 and 1: 2
//
// and no more, unless the tables of all rows differ from the reference at the same column. In that
// case, the first row's table becomes the reference.
//
// Compares block ids, not the content of blocks: rows with the same block share it, regardless of
// which sequence wrote it.
//
// Thread safety: none; one owner. Cost: Follow() takes constant amortised time per appended block.
// Count() does a few comparisons per row; if the reference changes (only with other rows or other
// blocks), it also compares each slot's table up to its first difference. Does not allocate after
// construction.

#ifndef REPRISE_RUNNER_COMMON_BLOCKS_H_
#define REPRISE_RUNNER_COMMON_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/runner/slots/scheduled_batch.h"

namespace reprise {

struct CommonBlocksOptions {
  int num_slots = 0;
  int max_blocks = 0;  // columns per table
  // The group whose tables are compared; its sequences must not free blocks before they end.
  int group = 0;
};

class CommonBlocks {
 public:
  explicit CommonBlocks(const CommonBlocksOptions& options);

  // Applies the leaves and updates of a batch. REQUIRES: the batch fits
  // (runner/slots/slot_mirror.h).
  void Follow(const ScheduledBatch& batch);

  // Returns the number of leading columns in which the tables of all rows have the same blocks; 0
  // without rows. Columns after the last filled column of a table do not count. REQUIRES: rows of
  // valid slots.
  int Count(absl::Span<const ScheduledRow> rows);

  // Number of changes of the reference, that is, of non-incremental comparisons.
  int64_t num_references() const { return num_references_; }

 private:
  struct Row {
    int num_columns = 0;  // filled columns
    int num_equal = 0;    // leading columns that equal the reference
  };

  int32_t* table_row(int slot) { return table_.data() + int64_t{slot} * options_.max_blocks; }
  // Continues the count after the columns that are known to be equal.
  void Extend(int slot);
  void RefersTo(int slot);

  CommonBlocksOptions options_;
  std::vector<int32_t> table_;      // [num_slots, max_blocks]
  std::vector<Row> rows_;           // by slot
  std::vector<int32_t> reference_;  // [max_blocks]
  int reference_columns_ = 0;
  int64_t num_references_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_COMMON_BLOCKS_H_
