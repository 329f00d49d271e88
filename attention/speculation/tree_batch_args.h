// Arguments of a batch of token trees, and the work on one of its rows; shared by the host and
// device forms (attention/speculation/tree_batch.h).

#ifndef REPRISE_ATTENTION_SPECULATION_TREE_BATCH_ARGS_H_
#define REPRISE_ATTENTION_SPECULATION_TREE_BATCH_ARGS_H_

#include <cstdint>

#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/attention/metadata/batch_rows.h"
#include "reprise/attention/speculation/token_tree.h"
#include "reprise/base/host_device.h"
#include "reprise/cache/tables/block_table_view.h"

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
  // read only if arrays.token_ids is present. Absent: 0.
  const int32_t* tokens = nullptr;
  int64_t token_stride = 0;

  BlockTableView table = {};
  int64_t max_context_len = 0;

  // Sizes of the arrays; under capture the captured ones.
  int num_rows = 0;
  int num_tokens = 0;
  int max_nodes = 0;  // 1..64
  BatchArrays arrays = {};
};

// The last nodes, which exceed the limit, are clipped: the rest is still a tree, because parents
// come before children.
constexpr RowArgs TreeRowArgs(const TreeBatchArgs& args) {
  RowArgs rows;
  rows.table = args.table;
  rows.max_context_len = args.max_context_len;
  rows.past_limit = PastLimit::kClip;
  rows.num_rows = args.num_rows;
  rows.num_tokens = args.num_tokens;
  rows.max_query_len = args.max_nodes;
  rows.arrays = args.arrays;
  return PrepareRows(rows);
}

// Returns a row, checked against its lengths only; its new tokens are the nodes.
REPRISE_HOST_DEVICE constexpr CheckedRow TreeRowOf(const TreeBatchArgs& args, const RowArgs& rows,
                                                   int row_idx) {
  RowRequest request;
  const int32_t slot = args.slots[row_idx];
  if (slot >= 0) {
    request.is_padded = false;
    request.table_row = slot;
    if (HasTableRow(args.table, slot)) {
      request.context_len = args.seq_len[slot];
      request.query_len = args.num_nodes[row_idx];
    }
  }
  return CheckRow(rows, request);
}

REPRISE_HOST_DEVICE constexpr int32_t NodeTokenId(const TreeBatchArgs& args, int row, int32_t slot,
                                                  int node) {
  if (args.first_token) {
    if (node == 0) return args.first_token[slot];
    --node;
  }
  return args.tokens ? args.tokens[row * args.token_stride + node] : 0;
}

// Working memory for the lanes of a row.
struct TreeScratch {
  uint64_t masks[kMaxTreeNodes];
  int32_t parents[kMaxTreeNodes];
};

// Writes a row whose nodes begin at token `start`, after those of all previous rows. Its lanes have
// one more function than those of base/lanes.h:
//   lanes.PathMasks(n, parents, masks)   the path masks of n <= 64 nodes (token_tree.h), each of
//                                        which follows its parent; may change `parents`
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteTreeRow(const Lanes& lanes, const TreeBatchArgs& args,
                                      const RowArgs& rows, int row_idx, int64_t start,
                                      TreeScratch& scratch) {
  CheckedRow row = TreeRowOf(args, rows, row_idx);
  lanes.ForEach(row.query_len, [&](int node) {
    scratch.parents[node] = args.parents[row_idx * args.parent_stride + node];
  });
  lanes.Sync();
  RowFault fault = FaultOfPlace(lanes, rows, row, start);
  if (fault != RowFault::kNoRoom && row.is_live() &&
      lanes.Any(row.query_len, [&](int node) { return !IsParent(scratch.parents[node], node); })) {
    fault = RowFault::kTree;
  }
  row.fault = fault;
  if (row.is_live()) lanes.PathMasks(row.query_len, scratch.parents, scratch.masks);
  const TokenRange tokens = TokensOf(rows, row, start);
  lanes.ForEach(static_cast<int>(tokens.end - tokens.first), [&](int node) {
    TokenEntry entry;
    if (row.is_live()) {
      entry.token_id = rows.arrays.token_ids ? NodeTokenId(args, row_idx, row.table_row, node) : 0;
      entry.tail_mask = scratch.masks[node];
      entry.position = static_cast<int32_t>(NodePosition(row.context_len, entry.tail_mask));
      entry.slot = NewTokenSlot(rows, row, /*group=*/0, node);
    }
    WriteToken(rows.arrays, tokens.first + node, entry);
  });
  lanes.ForEach(1, [&](int) { WriteBatchRow(rows, row_idx, row, tokens.first); });
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TREE_BATCH_ARGS_H_
