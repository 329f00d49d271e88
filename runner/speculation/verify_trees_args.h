// Arguments of the verification of trees of drafts (runner/speculation/verify_trees.h), and the work
// on one row, shared by the host and device forms.

#ifndef REPRISE_RUNNER_SPECULATION_VERIFY_TREES_ARGS_H_
#define REPRISE_RUNNER_SPECULATION_VERIFY_TREES_ARGS_H_

#include <cstdint>

#include "reprise/base/host_device.h"
#include "reprise/runner/speculation/tree_tokens_args.h"
#include "reprise/runner/speculation/verify_drafts_args.h"

namespace reprise {

struct VerifyTreesArgs {
  VerifyDraftsArgs drafts;  // max_drafts up to kMaxTreeDrafts; arrays with parents, slot_mapping
  int num_groups = 1;       // of slot_mapping
  // [num_groups, num_rows, max_moves] from which slot of the group's cache the keys of an accepted
  // draft are to be moved to which, in this order; -1 and -1: none.
  int64_t* move_from = nullptr;
  int64_t* move_to = nullptr;
  int max_moves = 0;  // of a row: further drafts are not accepted
};

// The row's work on the nodes of its tree, in order of the path. Its lanes have one more function
// than those of base/lanes.h:
//   lanes.First(begin, end, f)   the least i of [begin, end) for which f(i) holds, else end
// All lanes call it together.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteVerifiedTree(const Lanes& lanes, const VerifyTreesArgs& args,
                                           int row_idx) {
  const VerifyDraftsArgs& drafts = args.drafts;
  const StepArrays& arrays = drafts.arrays;
  const VerifiedRow row = VerifiedRowOf(drafts, row_idx);
  const int64_t num_moves = int64_t{drafts.num_rows} * args.max_moves;
  const int64_t first_move = int64_t{row_idx} * args.max_moves;
  lanes.ForEach(args.num_groups * args.max_moves, [&](int i) {
    const int64_t move = i / args.max_moves * num_moves + first_move + i % args.max_moves;
    args.move_from[move] = -1;
    args.move_to[move] = -1;
  });
  if (!HasOutput(drafts)) {
    lanes.ForEach(1, [&](int) { WriteNoOutput(drafts, row_idx); });
    return;
  }
  if (row.slot < 0) {
    lanes.ForEach(1, [&](int) { WriteNotSampled(drafts, row_idx); });
    return;
  }
  lanes.Sync();
  const int num_nodes = 1 + (row.num_drafts < args.max_moves ? row.num_drafts : args.max_moves);
  int node = 0;
  int num_new = 0;
  int32_t last = kNanRow;
  int32_t last_place = -1;
  while (node < num_nodes) {
    const int32_t chosen = ChosenAt(drafts, row_idx, row, node);
    if (chosen < 0) break;
    last = chosen;
    last_place = PlaceAt(row_idx, row, node);
    // The draft that it is, if it is one of those that follow the node.
    const int next = lanes.First(node + 1, num_nodes, [&](int i) {
      return arrays.parents[row.first_token + i] == node &&
             arrays.token_ids[row.first_token + i] == chosen;
    });
    lanes.ForEach(1, [&](int) {
      drafts
          .new_tokens[OutputOffset(drafts) + row_idx * (int64_t{drafts.max_drafts} + 1) + num_new] =
          chosen;
      if (next < num_nodes) KeepAccepted(drafts, row_idx, row, num_new, chosen);
    });
    ++num_new;
    node = next;
    if (next == num_nodes || next == num_new) continue;
    // Its keys are where the node's number says; the path's order is to say it.
    lanes.ForEach(args.num_groups, [&](int group) {
      const int64_t* slots = arrays.group_slots(group) + row.first_token;
      if (slots[next] < 0 || slots[num_new] < 0) return;  // an encoder's keys, or none
      const int64_t move = group * num_moves + first_move + num_new - 1;
      args.move_from[move] = slots[next];
      args.move_to[move] = slots[num_new];
    });
  }
  lanes.ForEach(1, [&](int) { AdvanceVerified(drafts, row_idx, row, num_new, last, last_place); });
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_VERIFY_TREES_ARGS_H_
