// Converts slots to the rows of the row builders (attention/metadata/batch_rows.h): a slot is a
// table row in every group, and its seq_len is the row's context length. Does not depend on
// LibTorch. constexpr, so that nvcc compiles it for the device.

#ifndef REPRISE_RUNNER_SLOTS_SLOT_ROWS_H_
#define REPRISE_RUNNER_SLOTS_SLOT_ROWS_H_

#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/attention/metadata/batch_rows.h"
#include "reprise/cache/kv_group.h"
#include "reprise/runner/slots/slot_state.h"
#include "reprise/runner/slots/step_arrays.h"

namespace reprise {

// Returns the step's arrays for row builders, without row_faults and the arrays of trees.
constexpr BatchArrays BatchArraysOf(const StepArrays& arrays) {
  return {.token_ids = arrays.token_ids,
          .positions = arrays.positions,
          .slot_mapping = arrays.slot_mapping,
          .query_start_loc = arrays.query_start_loc,
          .seq_lens = arrays.seq_lens,
          .table_row = arrays.table_row,
          .logits_indices = arrays.logits_indices,
          .context_lens = arrays.context_lens,
          .group_stride = arrays.max_tokens};
}

// Returns the arguments of a row builder that reads `slots` and writes `arrays`, except row_faults.
// The caller sets the numbers of rows and tokens, and calls PrepareRows(). groups: the first
// slots.num_groups entries are used.
constexpr RowArgs SlotRowArgs(const SlotState& slots, int block_size, int num_blocks,
                              const KvGroupSpec (&groups)[kMaxKvGroups], const StepArrays& arrays) {
  RowArgs rows;
  rows.table.entries = slots.block_table;
  rows.table.row_stride = slots.block_table_stride;
  rows.table.num_tables = slots.num_slots;
  rows.table.max_blocks = slots.max_blocks;
  rows.table.block_size = block_size;
  rows.table.num_blocks = num_blocks;
  rows.group_stride = slots.block_table_group_stride;
  rows.num_groups = slots.num_groups;
  for (int group = 0; group < kMaxKvGroups; ++group) rows.groups[group] = groups[group];
  rows.arrays = BatchArraysOf(arrays);
  return rows;
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_SLOT_ROWS_H_
