// Arguments of the tokens of trees of drafts (runner/speculation/tree_tokens.h), and the work on one
// row, shared by the host and device forms.

#ifndef REPRISE_RUNNER_SPECULATION_TREE_TOKENS_ARGS_H_
#define REPRISE_RUNNER_SPECULATION_TREE_TOKENS_ARGS_H_

#include <cstdint>

#include "reprise/attention/speculation/token_tree.h"
#include "reprise/base/host_device.h"
#include "reprise/runner/slots/slot_state.h"
#include "reprise/runner/slots/step_arrays.h"

namespace reprise {

struct TreeTokensArgs {
  SlotState slots;    // position_delta, for positions of several dimensions
  StepArrays arrays;  // of the step, refilled; with trees
  int num_rows = 0;   // padded
};

// Nodes of a row: its tokens, if it has drafts, else 0.
REPRISE_HOST_DEVICE constexpr int NumNodesOf(const StepArrays& arrays, int row_idx) {
  if (arrays.first_verified[row_idx] < 0) return 0;
  const int64_t count =
      int64_t{arrays.query_start_loc[row_idx + 1]} - arrays.query_start_loc[row_idx];
  return static_cast<int>(count < 0 ? 0 : (count < kMaxTreeNodes ? count : kMaxTreeNodes));
}

// The row of logits of a node.
REPRISE_HOST_DEVICE constexpr int64_t LogitsRowOfNode(const StepArrays& arrays, int row_idx,
                                                      int num_nodes, int node) {
  return node < num_nodes - 1 ? int64_t{arrays.first_verified[row_idx]} + node : row_idx;
}

// Lanes: base/lanes.h.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteTreeTokens(const Lanes& lanes, const TreeTokensArgs& args,
                                         int row_idx) {
  const StepArrays& arrays = args.arrays;
  const int num_nodes = NumNodesOf(arrays, row_idx);
  lanes.ForEach(1, [&](int) { arrays.tail_len[row_idx] = num_nodes; });
  if (num_nodes == 0) return;
  const int64_t first = arrays.query_start_loc[row_idx];
  const int32_t context_len = arrays.context_lens[row_idx];
  lanes.ForEach(num_nodes, [&](int node) {
    const uint64_t mask = PathMask(arrays.parents + first, node);
    const int depth = NumBits(mask) - 1;
    const int32_t position = static_cast<int32_t>(NodePosition(context_len, mask));
    arrays.tail_mask[first + node] = mask;
    arrays.positions[first + node] = position;
    arrays.sample_offset[LogitsRowOfNode(arrays, row_idx, num_nodes, node)] = depth;
    for (int dim = 0; arrays.num_position_dims > 1 && dim < arrays.num_position_dims; ++dim) {
      arrays.model_positions[int64_t{dim} * arrays.max_tokens + first + node] =
          position + args.slots.position_delta[arrays.table_row[row_idx]];
    }
  });
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_TREE_TOKENS_ARGS_H_
