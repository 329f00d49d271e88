// Arguments of TreeTokens, and the functions that process one row. Shared by the host and device
// forms (attention/speculation/tree_tokens.h).

#ifndef REPRISE_ATTENTION_SPECULATION_TREE_TOKENS_ARGS_H_
#define REPRISE_ATTENTION_SPECULATION_TREE_TOKENS_ARGS_H_

#include <cstdint>

#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/attention/speculation/token_tree.h"
#include "reprise/base/host_device.h"
#include "reprise/base/row_fault.h"

namespace reprise {

// Positions with several components (M-RoPE), for the model. Attention reads
// BatchArrays::positions.
struct ModelPositions {
  int32_t* positions = nullptr;    // [num_dims, stride]; absent: positions have one component
  const int32_t* delta = nullptr;  // [num_tables] added to a token's position, by table row
  int num_dims = 1;
  int64_t stride = 0;
};

struct TreeTokensArgs {
  // The batch, whose rows are chains. Read: query_start_loc, seq_lens, table_row. Written:
  // positions, tail_len, tail_mask; for a row with a fault, all entries of the row, and with
  // RowFault::kTree also all entries of its tokens.
  BatchArrays arrays = {};
  int num_groups = 1;  // KV groups of arrays.slot_mapping
  TreeParents parents = {};
  // [num_rows] row of the logits that belongs to the row's first token; negative: the row has no
  // drafts and is not a tree (AcceptDraftsArgs::first_verified). Absent: all live rows are trees.
  const int32_t* first_verified = nullptr;
  // [num_logits] depth of the node that each row of the logits belongs to. Row r belongs to the
  // last node of batch row r. The rows from first_verified[r] belong to its other nodes, in order.
  // May be absent; requires first_verified.
  int32_t* sample_offset = nullptr;
  ModelPositions model_positions = {};
  int num_rows = 0;
  int num_tokens = 0;
  int num_logits = 0;             // read with sample_offset
  int max_nodes = kMaxTreeNodes;  // maximum number of nodes per row, 1 to 64
};

// The tree of a row.
struct TreeRow {
  int32_t num_nodes = 0;  // 0: the row is not a tree
  int64_t first_token = 0;
  int32_t context_len = 0;  // keys before the batch
  RowFault fault = RowFault::kNone;
};

// Returns a row after all checks except for the check of its parents.
REPRISE_HOST_DEVICE constexpr TreeRow TreeRowOf(const TreeTokensArgs& args, int row_idx) {
  TreeRow row;
  const int64_t seq_len = args.arrays.seq_lens[row_idx];
  if (seq_len == 0) return row;
  const int64_t first_logits = args.first_verified != nullptr ? args.first_verified[row_idx] : 0;
  if (first_logits < 0) return row;
  const int64_t first = args.arrays.query_start_loc[row_idx];
  const int64_t num_nodes = args.arrays.query_start_loc[row_idx + 1] - first;
  if (first < 0 || num_nodes < 1 || num_nodes > args.max_nodes ||
      first + num_nodes > args.num_tokens || seq_len < num_nodes ||
      (args.sample_offset != nullptr && first_logits + num_nodes - 1 > args.num_logits)) {
    row.fault = RowFault::kLength;
    return row;
  }
  row.num_nodes = static_cast<int32_t>(num_nodes);
  row.first_token = first;
  row.context_len = static_cast<int32_t>(seq_len - num_nodes);
  return row;
}

// Makes a row and its nodes inert.
template <typename Lanes>
REPRISE_HOST_DEVICE void ClearTreeRow(const Lanes& lanes, const TreeTokensArgs& args, int row_idx,
                                      const TreeRow& row, RowFault fault) {
  lanes.Sync();
  lanes.ForEach(row.num_nodes, [&](int node) {
    const int64_t token = row.first_token + node;
    WriteToken(args.arrays, token, {});
    for (int group = 1; group < args.num_groups; ++group)
      args.arrays.group_slots(group)[token] = -1;
  });
  lanes.ForEach(1, [&](int) { WriteRow(args.arrays, row_idx, {}, fault); });
}

// Writes the entries in which a node of a tree differs from a token of a chain.
REPRISE_HOST_DEVICE constexpr void WriteNode(const TreeTokensArgs& args, int row_idx,
                                             const TreeRow& row, int node, uint64_t mask) {
  const int64_t token = row.first_token + node;
  const auto position = static_cast<int32_t>(NodePosition(row.context_len, mask));
  args.arrays.tail_mask[token] = mask;
  args.arrays.positions[token] = position;
  if (args.sample_offset != nullptr) {
    const int64_t logits =
        node < row.num_nodes - 1 ? int64_t{args.first_verified[row_idx]} + node : row_idx;
    args.sample_offset[logits] = position - row.context_len;
  }
  const ModelPositions& model = args.model_positions;
  if (model.positions == nullptr) return;
  for (int dim = 0; dim < model.num_dims; ++dim) {
    const int64_t moved = int64_t{position} + model.delta[args.arrays.table_row[row_idx]];
    model.positions[dim * model.stride + token] = static_cast<int32_t>(moved);
  }
}

// Turns a row into a tree. Lanes: base/lanes.h.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteTreeTokens(const Lanes& lanes, const TreeTokensArgs& args,
                                         int row_idx) {
  const TreeRow row = TreeRowOf(args, row_idx);
  if (row.fault != RowFault::kNone) return ClearTreeRow(lanes, args, row_idx, row, row.fault);
  const int32_t* const parents = args.parents.row(row_idx, row.first_token);
  if (lanes.Any(row.num_nodes, [&](int node) { return !IsParent(parents[node], node); })) {
    return ClearTreeRow(lanes, args, row_idx, row, RowFault::kTree);
  }
  lanes.ForEach(1, [&](int) { args.arrays.tail_len[row_idx] = row.num_nodes; });
  lanes.ForEach(row.num_nodes,
                [&](int node) { WriteNode(args, row_idx, row, node, PathMask(parents, node)); });
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TREE_TOKENS_ARGS_H_
