// What a batch of token trees is made of, and what is done to one row of it: shared by the host's
// and the device's form (attention/tree_batch.h).

#ifndef ATTENTION_TREE_BATCH_ARGS_H_
#define ATTENTION_TREE_BATCH_ARGS_H_

#include <cstdint>

#include "attention/batch_arrays.h"
#include "attention/host_device.h"
#include "attention/paged_table.h"
#include "attention/token_tree.h"

namespace reprise {

struct TreeBatchArgs {
  // [num_rows] table row of the row's sequence; negative: a padded row.
  const int32_t* slots = nullptr;
  // [num_tables] by table row: the sequence's keys in the cache before this step.
  const int32_t* seq_len = nullptr;
  // [num_rows] nodes of the row's tree, 0..max_nodes.
  const int32_t* num_nodes = nullptr;
  // [num_rows, parent_stride] parent of each node; stride 0: one tree for all rows.
  const int32_t* parents = nullptr;
  int64_t parent_stride = 0;
  // [num_tables] by table row: the token of node 0. Absent: `tokens` holds it.
  const int32_t* first_token = nullptr;
  // [num_rows, token_stride] the nodes' tokens (from node 1 on, if node 0's is in first_token);
  // read only if arrays.token_ids is there. Absent: 0.
  const int32_t* tokens = nullptr;
  int64_t token_stride = 0;

  PagedTable table = {};
  int64_t max_context_len = 0;

  // Sizes of the arrays; under capture the captured ones.
  int num_rows = 0;
  int num_tokens = 0;
  int max_nodes = 0;  // 1..64
  BatchArrays arrays = {};
};

// Sequences may be so long, with the tree.
constexpr int64_t ContextLimit(const TreeBatchArgs& args) {
  const int64_t room = TableCapacity(args.table);
  return room < args.max_context_len ? room : args.max_context_len;
}

struct TreeRowLen {
  int num_nodes = 0;
  RowFault fault = RowFault::kNone;
};

// Nodes that would pass the limit are clipped, the last ones: what is left is a tree, for parents
// stand before children.
REPRISE_HOST_DEVICE constexpr TreeRowLen TreeRowLenOf(const TreeBatchArgs& args, int row) {
  const int32_t slot = args.slots[row];
  if (slot < 0) return {};
  if (!HasTableRow(args.table, slot)) return {0, RowFault::kTableRow};
  const int64_t limit = ContextLimit(args);
  const int64_t seq_len = args.seq_len[slot];
  const int64_t wanted = args.num_nodes[row];
  if (seq_len < 0 || seq_len > limit || wanted < 0 || wanted > args.max_nodes) {
    return {0, RowFault::kLength};
  }
  const int64_t room = limit - seq_len;
  return {static_cast<int>(wanted < room ? wanted : room), RowFault::kNone};
}

REPRISE_HOST_DEVICE constexpr int32_t NodeTokenId(const TreeBatchArgs& args, int row, int32_t slot,
                                                  int node) {
  if (args.first_token) {
    if (node == 0) return args.first_token[slot];
    --node;
  }
  return args.tokens ? args.tokens[row * args.token_stride + node] : 0;
}

// Memory in which the lanes of a row work.
struct TreeScratch {
  int64_t slots[kMaxTreeNodes];
  uint64_t masks[kMaxTreeNodes];
  int32_t parents[kMaxTreeNodes];
};

// Writes a row whose nodes begin at token `start`, after those of all rows before it.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteTreeRow(const Lanes& lanes, const TreeBatchArgs& args, int row,
                                      int64_t start, TreeScratch& scratch) {
  const BatchArrays& arrays = args.arrays;
  const TreeRowLen len = TreeRowLenOf(args, row);
  const int32_t slot = args.slots[row];
  const int32_t prefix = len.num_nodes > 0 ? args.seq_len[slot] : 0;
  const int64_t first = start < args.num_tokens ? start : args.num_tokens;
  const int64_t end =
      start + len.num_nodes < args.num_tokens ? start + len.num_nodes : args.num_tokens;
  lanes.ForEach(len.num_nodes, [&](int node) {
    scratch.parents[node] = args.parents[row * args.parent_stride + node];
    scratch.slots[node] = TableSlot(args.table, slot, static_cast<int64_t>(prefix) + node);
  });
  lanes.Sync();
  RowFault fault = len.fault;
  if (len.num_nodes > 0 && start + len.num_nodes > args.num_tokens) {
    fault = RowFault::kNoRoom;
  } else if (lanes.Any(len.num_nodes,
                       [&](int node) { return !IsParent(scratch.parents[node], node); })) {
    fault = RowFault::kTree;
  } else if (lanes.Any(len.num_nodes, [&](int node) { return scratch.slots[node] < 0; })) {
    fault = RowFault::kNoBlock;
  }
  const bool is_live = fault == RowFault::kNone && len.num_nodes > 0;
  if (is_live) lanes.PathMasks(len.num_nodes, scratch.parents, scratch.masks);
  lanes.ForEach(static_cast<int>(end - first), [&](int node) {
    TokenEntry entry;
    if (is_live) {
      entry.token_id = arrays.token_ids ? NodeTokenId(args, row, slot, node) : 0;
      entry.tail_mask = scratch.masks[node];
      entry.position = static_cast<int32_t>(NodePosition(prefix, entry.tail_mask));
      entry.slot = scratch.slots[node];
    }
    WriteToken(arrays, first + node, entry);
  });
  lanes.ForEach(1, [&](int) {
    RowEntry entry;
    if (is_live) {
      entry.seq_len = prefix + len.num_nodes;
      entry.table_row = slot;
      entry.last_token = static_cast<int32_t>(end - 1);
      entry.tail_len = len.num_nodes;
    }
    arrays.query_start_loc[row] = static_cast<int32_t>(first);
    WriteRow(arrays, row, entry, fault);
  });
}

}  // namespace reprise

#endif  // ATTENTION_TREE_BATCH_ARGS_H_
