// Arguments of the steps of a draft model, and the work on one row of one step; shared by the host
// and device forms (attention/speculation/draft_steps.h).

#ifndef REPRISE_ATTENTION_SPECULATION_DRAFT_STEPS_ARGS_H_
#define REPRISE_ATTENTION_SPECULATION_DRAFT_STEPS_ARGS_H_

#include <cstdint>

#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/attention/metadata/batch_rows.h"
#include "reprise/attention/speculation/token_tree.h"
#include "reprise/base/host_device.h"
#include "reprise/base/lanes.h"
#include "reprise/base/row_fault.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

// The sequences to draft for, and the blocks for their drafts.
struct DraftRows {
  // [num_rows] table row of the row's sequence; negative: a padded row.
  const int32_t* slots = nullptr;
  // [num_tables] by table row: the sequence's keys in the draft model's cache before the drafts.
  const int32_t* seq_len = nullptr;
  BlockTableView table = {};  // of the draft model
  int64_t max_context_len = 0;
  int num_rows = 0;
};

// The arrays of step s are `arrays` advanced by s sets: rows by num_rows, tokens by num_rows *
// width, query_start_loc by num_rows + 1.
constexpr BatchArrays StepArraysAt(const BatchArrays& arrays, int step, int num_rows, int width) {
  const int64_t rows = static_cast<int64_t>(step) * num_rows;
  const int64_t tokens = rows * width;
  BatchArrays at = arrays;
  at.token_ids = nullptr;  // the draft model's own
  at.positions += tokens;
  at.slot_mapping += tokens;
  at.query_start_loc += rows + step;
  at.seq_lens += rows;
  at.table_row += rows;
  if (at.logits_indices) at.logits_indices += rows;
  if (at.tail_len) at.tail_len += rows;
  if (at.tail_mask) at.tail_mask += tokens;
  if (at.row_faults) at.row_faults += rows;
  return at;
}

// Rows of `width` tokens, whose arrays are given to each step.
constexpr RowArgs DraftRowArgs(const DraftRows& drafts, int width) {
  RowArgs rows;
  rows.table = drafts.table;
  rows.max_context_len = drafts.max_context_len;
  rows.num_rows = drafts.num_rows;
  rows.max_query_len = width;
  return PrepareRows(rows);
}

// Returns the row's tokens from key seq_len + num_before on, checked against its lengths only. They
// are clipped all together: a row that they would take past the limit is inert.
REPRISE_HOST_DEVICE constexpr CheckedRow DraftRowOf(const DraftRows& drafts, const RowArgs& rows,
                                                    int num_before, int row_idx) {
  RowRequest request;
  const int32_t slot = drafts.slots[row_idx];
  if (slot < 0) return {};
  request.is_padded = false;
  request.table_row = slot;
  if (HasTableRow(drafts.table, slot)) request.context_len = drafts.seq_len[slot];
  CheckedRow row = CheckRow(rows, request);
  const int64_t first = int64_t{row.context_len} + num_before;
  if (row.fault != RowFault::kNone || first + rows.max_query_len > rows.context_limit) return row;
  row.context_len = static_cast<int32_t>(first);
  row.query_len = rows.max_query_len;
  return row;
}

// Writes the per-row entries. Rows keep their places, live or not.
REPRISE_HOST_DEVICE constexpr void WriteDraftRow(const BatchArrays& arrays, const RowArgs& rows,
                                                 int row_idx, const CheckedRow& row, int tail_len) {
  const int width = rows.max_query_len;
  RowEntry entry;
  if (row.is_live()) {
    entry.seq_len = row.context_len + width;
    entry.table_row = row.table_row;
    entry.tail_len = tail_len;
  }
  entry.last_token = (row_idx + 1) * width - 1;
  arrays.query_start_loc[row_idx] = row_idx * width;
  if (row_idx == rows.num_rows - 1) arrays.query_start_loc[row_idx + 1] = (row_idx + 1) * width;
  WriteRow(arrays, row_idx, entry, row.fault);
}

// Maximum steps of one launch: the limit of the y dimension of a grid.
inline constexpr int kMaxDraftSteps = 65535;

// One token per row and step: topk = 1.
struct DraftChainArgs {
  DraftRows rows = {};
  int num_steps = 0;  // sets of arrays, at most kMaxDraftSteps
  BatchArrays arrays = {};
};

// Writes a row of step `step`. `rows`: DraftRowArgs() of width 1.
REPRISE_HOST_DEVICE inline void WriteDraftChainRow(const DraftChainArgs& args, const RowArgs& rows,
                                                   int step, int row_idx) {
  const BatchArrays arrays = StepArraysAt(args.arrays, step, rows.num_rows, 1);
  CheckedRow row = DraftRowOf(args.rows, rows, step, row_idx);
  if (row.is_live() && !HasBlocks(SerialLanes(), rows, row)) row.fault = RowFault::kNoBlock;
  TokenEntry entry;
  if (row.is_live()) {
    entry.position = row.context_len;
    entry.slot = NewTokenSlot(rows, row, /*group=*/0, /*i=*/0);
  }
  WriteToken(arrays, row_idx, entry);
  WriteDraftRow(arrays, rows, row_idx, row, /*tail_len=*/0);
}

// `width` nodes per row and step: topk > 1, a level of a tree.
struct DraftLevelArgs {
  DraftRows rows = {};
  int step = 0;   // levels before this one; step * width + width <= 64
  int width = 0;  // nodes of a level
  // [num_rows, parent_stride] for each node of this level, its parent in the earlier levels:
  // 0..step * width - 1, or -1 if it directly follows the cache. Absent: -1.
  const int32_t* parents = nullptr;
  int64_t parent_stride = 0;
  // [num_rows, 64] masks of all nodes so far: state of the tree, read and extended by each level.
  // Needs no clearing before step 0.
  uint64_t* node_masks = nullptr;
  BatchArrays arrays = {};  // of this level; token_ids is not written
};

// Writes one row of this level. `rows`: DraftRowArgs() of the level's width.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteDraftLevelRow(const Lanes& lanes, const DraftLevelArgs& args,
                                            const RowArgs& rows, int row_idx) {
  const int32_t* parents = args.parents ? args.parents + row_idx * args.parent_stride : nullptr;
  uint64_t* masks = args.node_masks + static_cast<int64_t>(row_idx) * kMaxTreeNodes;
  const int first_node = args.step * args.width;
  const auto parent_of = [&](int i) { return parents ? parents[i] : -1; };
  CheckedRow row = DraftRowOf(args.rows, rows, first_node, row_idx);
  if (row.is_live() && lanes.Any(args.width, [&](int i) {
        const int32_t parent = parent_of(i);
        return !IsParent(parent, first_node) || (parent >= 0 && masks[parent] == 0);
      })) {
    row.fault = RowFault::kTree;
  }
  if (row.is_live() && !HasBlocks(lanes, rows, row)) row.fault = RowFault::kNoBlock;
  lanes.ForEach(args.width, [&](int i) {
    TokenEntry entry;
    if (row.is_live()) {
      const int32_t parent = parent_of(i);
      entry.tail_mask = NodeBit(first_node + i) | (parent >= 0 ? masks[parent] : 0);
      entry.position =
          static_cast<int32_t>(NodePosition(row.context_len - first_node, entry.tail_mask));
      entry.slot = NewTokenSlot(rows, row, /*group=*/0, i);
    }
    masks[first_node + i] = entry.tail_mask;  // 0: may not be a parent
    WriteToken(args.arrays, static_cast<int64_t>(row_idx) * args.width + i, entry);
  });
  lanes.ForEach(1, [&](int) {
    WriteDraftRow(args.arrays, rows, row_idx, row, /*tail_len=*/first_node + args.width);
  });
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_DRAFT_STEPS_ARGS_H_
