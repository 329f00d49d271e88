// Arguments of the steps of a draft model, and the work on one row of one step; shared by the host
// and device forms (attention/speculation/draft_steps.h).

#ifndef ATTENTION_SPECULATION_DRAFT_STEPS_ARGS_H_
#define ATTENTION_SPECULATION_DRAFT_STEPS_ARGS_H_

#include <cstdint>

#include "attention/metadata/batch_arrays.h"
#include "attention/speculation/token_tree.h"
#include "base/host_device.h"
#include "cache/tables/block_table_view.h"

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

constexpr int64_t ContextLimit(const DraftRows& rows) {
  const int64_t room = TableCapacity(rows.table);
  return room < rows.max_context_len ? room : rows.max_context_len;
}

// Maximum steps of one launch: the limit of the y dimension of a grid.
inline constexpr int kMaxDraftSteps = 65535;

// One token per row and step: topk = 1.
struct DraftChainArgs {
  DraftRows rows = {};
  int num_steps = 0;  // sets of arrays, at most kMaxDraftSteps
  BatchArrays arrays = {};
};

// Row `row` of step `step`.
REPRISE_HOST_DEVICE constexpr void WriteDraftChainRow(const DraftChainArgs& args, int step,
                                                      int row) {
  const DraftRows& rows = args.rows;
  const BatchArrays arrays = StepArraysAt(args.arrays, step, rows.num_rows, 1);
  const int32_t slot = rows.slots[row];
  RowEntry row_entry;
  TokenEntry token_entry;
  RowFault fault = RowFault::kNone;
  if (slot >= 0) {
    const int64_t limit = ContextLimit(rows);
    const bool has_row = HasTableRow(rows.table, slot);
    const int64_t seq_len = has_row ? rows.seq_len[slot] : 0;
    const int64_t position = seq_len + step;
    if (!has_row) {
      fault = RowFault::kTableRow;
    } else if (seq_len < 0 || seq_len > limit) {
      fault = RowFault::kLength;
    } else if (position < limit) {  // else the draft is clipped
      token_entry.slot = TableSlot(rows.table, slot, position);
      if (token_entry.slot < 0) {
        fault = RowFault::kNoBlock;
      } else {
        token_entry.position = static_cast<int32_t>(position);
        row_entry.seq_len = static_cast<int32_t>(position + 1);
        row_entry.table_row = slot;
      }
    }
  }
  row_entry.last_token = row;
  arrays.query_start_loc[row] = row;
  if (row == rows.num_rows - 1) arrays.query_start_loc[row + 1] = row + 1;
  WriteRow(arrays, row, row_entry, fault);
  WriteToken(arrays, row, token_entry);
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

// Writes one row of this level.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteDraftLevelRow(const Lanes& lanes, const DraftLevelArgs& args,
                                            int row) {
  const DraftRows& rows = args.rows;
  const BatchArrays& arrays = args.arrays;
  const int32_t slot = rows.slots[row];
  const int32_t* parents = args.parents ? args.parents + row * args.parent_stride : nullptr;
  uint64_t* masks = args.node_masks + static_cast<int64_t>(row) * kMaxTreeNodes;
  const int first_node = args.step * args.width;
  const bool has_row = slot >= 0 && HasTableRow(rows.table, slot);
  const int64_t limit = ContextLimit(rows);
  const int64_t prefix = has_row ? rows.seq_len[slot] : 0;
  const int64_t first = prefix + first_node;  // key of the level's first node
  const auto parent_of = [&](int i) { return parents ? parents[i] : -1; };

  RowFault fault = RowFault::kNone;
  bool is_live = has_row;
  if (slot >= 0 && !has_row) {
    fault = RowFault::kTableRow;
  } else if (prefix < 0 || prefix > limit) {
    fault = RowFault::kLength;
  } else if (first + args.width > limit) {
    is_live = false;  // this level and all later ones are clipped
  } else if (has_row && lanes.Any(args.width, [&](int i) {
               const int32_t parent = parent_of(i);
               return parent < -1 || parent >= first_node || (parent >= 0 && masks[parent] == 0);
             })) {
    fault = RowFault::kTree;
  } else if (has_row && lanes.Any(args.width, [&](int i) {
               return TableSlot(rows.table, slot, first + i) < 0;
             })) {
    fault = RowFault::kNoBlock;
  }
  is_live = is_live && fault == RowFault::kNone;

  lanes.ForEach(args.width, [&](int i) {
    TokenEntry entry;
    if (is_live) {
      const int32_t parent = parent_of(i);
      entry.tail_mask = NodeBit(first_node + i) | (parent >= 0 ? masks[parent] : 0);
      entry.position = static_cast<int32_t>(NodePosition(prefix, entry.tail_mask));
      entry.slot = TableSlot(rows.table, slot, first + i);
    }
    masks[first_node + i] = entry.tail_mask;  // 0: may not be a parent
    WriteToken(arrays, static_cast<int64_t>(row) * args.width + i, entry);
  });
  lanes.ForEach(1, [&](int) {
    RowEntry entry;
    if (is_live) {
      entry.seq_len = static_cast<int32_t>(first + args.width);
      entry.table_row = slot;
      entry.tail_len = first_node + args.width;
    }
    entry.last_token = (row + 1) * args.width - 1;
    arrays.query_start_loc[row] = row * args.width;
    if (row == rows.num_rows - 1) arrays.query_start_loc[row + 1] = (row + 1) * args.width;
    WriteRow(arrays, row, entry, fault);
  });
}

}  // namespace reprise

#endif  // ATTENTION_SPECULATION_DRAFT_STEPS_ARGS_H_
