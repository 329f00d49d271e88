// The leading blocks that the block tables of a step's rows have in common. The host tracks them
// from the block table updates, so that a step does not compare whole tables.
//
//   CommonBlocks blocks({.num_slots = 8, .max_blocks = 64});
//   blocks.Follow(batch);                        // each batch, before Count() of its rows
//   const int num_blocks = blocks.Count(batch.rows);
//
// Every slot's table is compared with one row of blocks, the reference, and the number of leading
// columns that agree is kept up to date as updates come. The rows of a step have at least the
// minimum of their numbers in common:
//
//   reference  7 2 9 4       slot 0  7 2 9 4 5   4
//                            slot 1  7 2 6       2      slots 0 and 1: 2
//
// and no more, unless all of them leave the reference at the same column. Then the first row's
// table becomes the reference.
//
// Only block ids are compared, not their content: rows with the same block share it, no matter
// which sequence wrote it.
//
// Thread safety: none; one owner. Cost: Follow() is linear in the updates. Count() is one
// comparison per row; if the reference changes (only with other rows or other blocks), it also
// compares each slot's table up to its first difference. No allocation after construction.

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
  int max_blocks = 0;  // columns of a table
  int group = 0;       // whose table; its sequences free no blocks before they end
};

class CommonBlocks {
 public:
  explicit CommonBlocks(const CommonBlocksOptions& options);

  // Applies the batch's leaves and updates. REQUIRES: the batch fits (runner/slots/slot_mirror.h).
  void Follow(const ScheduledBatch& batch);

  // The most leading columns in which the tables of all rows name the same blocks; 0 without rows.
  // Columns that an update has not filled agree with none. REQUIRES: rows of slots.
  int Count(absl::Span<const ScheduledRow> rows);

  // How often the reference has changed: the comparisons that were not incremental.
  int64_t num_references() const { return num_references_; }

 private:
  struct Row {
    int num_columns = 0;  // filled
    int num_equal = 0;    // leading columns that agree with the reference
  };

  int32_t* table_row(int slot) { return table_.data() + int64_t{slot} * options_.max_blocks; }
  // Continues to count from the columns that are known to agree.
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
