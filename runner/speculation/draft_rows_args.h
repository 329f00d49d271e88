// Arguments of the rows of a draft model's passes (runner/speculation/draft_rows.h), and the work
// on one row, shared by the host and device forms.

#ifndef REPRISE_RUNNER_SPECULATION_DRAFT_ROWS_ARGS_H_
#define REPRISE_RUNNER_SPECULATION_DRAFT_ROWS_ARGS_H_

#include <cstdint>

#include "reprise/attention/metadata/batch_rows.h"
#include "reprise/base/host_device.h"
#include "reprise/base/row_fault.h"
#include "reprise/cache/kv_group.h"
#include "reprise/cache/tables/block_table_view.h"
#include "reprise/runner/slots/slot_rows.h"
#include "reprise/runner/slots/slot_state.h"
#include "reprise/runner/slots/step_arrays.h"

namespace reprise {

// The level of a tree that a pass is about: nodes of the row's tree by number, level by level.
struct DraftLevel {
  // [max_drafts] SpeculationOptions::tree, and the number of each draft among those that follow the
  // same node. Null: drafts are chains, and the other fields are not read.
  const int32_t* tree = nullptr;
  const int32_t* ranks = nullptr;
  int num_levels = 0;  // passes: one for each level of drafts; in another one drafts are kept only
  int first_before = 0;  // nodes [first_before, first) had their tokens in the pass before, and
  int first = 0;         // nodes [first, end) follow them: they have theirs in this one
  int end = 0;
  int64_t rank_stride = 0;  // elements of `chosen` from rank to rank
};

struct DraftRowsArgs {
  SlotState slots;    // of the runner
  StepArrays arrays;  // of the step, refilled; token_ids of the drafts are written
  StepArrays draft;   // of the pass: written
  // [num_rows] what the draft model chose in the pass before, by Sample() with draft.sample_slot:
  // negative for rows that did not sample. Read in passes after the first. Of a tree
  // [ranks, num_rows, first - first_before]: by rank, then row, then node of the level before.
  const int32_t* chosen = nullptr;
  DraftLevel level = {};
  // Rows of the kept logits of the passes from pass to pass (StepArrays::draft_logits); of chains.
  // Read if arrays.draft_logits is there.
  int logits_stride = 0;
  int pass = 0;        // 0 to NumPasses(); in the last there are no rows, only drafts to keep
  int max_drafts = 0;  // of a row of this step
  int num_rows = 0;    // padded, of the step and of the pass
  int num_tokens = 0;  // padded, of the pass: NumDraftTokens()
  int block_size = 0;
  int num_blocks = 0;
  // The first slots.num_groups; kCross: none of the draft model's layers are in it, and it is not read.
  KvGroupSpec groups[kMaxKvGroups] = {};
};

// Tokens of a pass: in the first one a row has up to 1 + max_drafts, then one; of a tree `width`, the
// nodes of the level.
constexpr int NumDraftTokens(int pass, int num_rows, int max_drafts, int width = 1) {
  return pass == 0 ? num_rows * (1 + max_drafts) : num_rows * width;
}

REPRISE_HOST_DEVICE constexpr bool IsTree(const DraftRowsArgs& args) {
  return args.level.tree != nullptr;
}

constexpr int NumPasses(const DraftRowsArgs& args) {
  return IsTree(args) ? args.level.num_levels : args.max_drafts;
}

// The nodes of the pass: of a chain node `pass`.
REPRISE_HOST_DEVICE constexpr int FirstNode(const DraftRowsArgs& args) {
  return IsTree(args) ? args.level.first : args.pass;
}
REPRISE_HOST_DEVICE constexpr int EndNode(const DraftRowsArgs& args) {
  return IsTree(args) ? args.level.end : args.pass + 1;
}

// What the draft model chose to be the draft `node` of a row in the pass before; negative: nothing.
// REQUIRES: a node of the pass, which is not the first.
REPRISE_HOST_DEVICE constexpr int32_t ChosenOfNode(const DraftRowsArgs& args, int row_idx,
                                                   int node) {
  if (!IsTree(args)) return args.chosen[row_idx];
  const DraftLevel& level = args.level;
  const int64_t width = level.first - level.first_before;
  return args.chosen[level.ranks[node - 1] * level.rank_stride + row_idx * width +
                     level.tree[node - 1] - level.first_before];
}

// The rows of a pass. No faults are reported: a row that cannot be served is one without good drafts.
constexpr RowArgs DraftPassRowArgs(const DraftRowsArgs& args) {
  RowArgs rows = SlotRowArgs(args.slots, args.block_size, args.num_blocks, args.groups, args.draft);
  rows.num_rows = args.num_rows;
  rows.num_tokens = args.num_tokens;
  rows.max_query_len = args.pass == 0 ? 1 + args.max_drafts : EndNode(args) - FirstNode(args);
  // Of a level each node has logits.
  if (IsTree(args) && args.pass > 0) rows.arrays.logits_indices = nullptr;
  return PrepareRows(rows);
}

// The slot of a row that gets drafts, else -1.
REPRISE_HOST_DEVICE constexpr int32_t DraftSlotOf(const DraftRowsArgs& args, int row_idx) {
  const int32_t slot = args.arrays.table_row[row_idx];
  const bool is_slot = slot >= 0 && slot < args.slots.num_slots;
  return is_slot && args.arrays.num_proposed[row_idx] > 0 ? slot : -1;
}

// A row of the pass, checked except for its blocks. Reads nothing that a pass writes, except for
// drafted_len, which the first pass reads and the later ones write: so rows may be placed by any
// thread while others are written.
REPRISE_HOST_DEVICE constexpr CheckedRow DraftPassRowOf(const DraftRowsArgs& args,
                                                        const RowArgs& rows, int row_idx) {
  const int32_t slot = DraftSlotOf(args, row_idx);
  if (slot < 0) return {};
  RowRequest request;
  request.is_padded = false;
  request.table_row = slot;
  const int64_t last = args.arrays.context_lens[row_idx];  // position of the slot's last token
  if (args.pass == 0) {
    const int64_t drafted = args.slots.drafted_len[slot];
    const int64_t most = 1 + int64_t{args.max_drafts};
    request.context_len = drafted < last ? drafted : last;
    request.query_len = last + 1 - request.context_len;
    if (request.query_len > most) request.query_len = most;
  } else {
    // Nodes that no draft follows are not fed.
    const int first = FirstNode(args);
    if (EndNode(args) > args.arrays.num_proposed[row_idx]) return {};
    if (ChosenOfNode(args, row_idx, first) < 0) return {};
    request.context_len = last + first;
    request.query_len = EndNode(args) - first;
  }
  return CheckRow(rows, request);
}

// The id of the i-th token of a row of the pass, at `position`.
REPRISE_HOST_DEVICE constexpr int32_t DraftTokenId(const DraftRowsArgs& args, int row_idx,
                                                   int32_t slot, int64_t position, int i) {
  if (args.pass > 0) {
    const int32_t chosen = ChosenOfNode(args, row_idx, FirstNode(args) + i);
    return chosen > 0 ? chosen : 0;
  }
  if (position == args.arrays.context_lens[row_idx]) {
    return args.arrays.token_ids[args.arrays.query_start_loc[row_idx]];
  }
  const TokenHistory& history = args.slots.history;
  const int32_t token = position < history.stride ? history.row(slot)[position] : 0;
  return token > 0 ? token : 0;  // of an unknown one 0
}

// Takes over what the pass before has left of a row: its drafts, and its keys, which are in the
// cache by now. REQUIRES: pass >= 1. Lanes: base/lanes.h.
template <typename Lanes>
REPRISE_HOST_DEVICE void KeepDraftPass(const Lanes& lanes, const DraftRowsArgs& args, int row_idx) {
  const int32_t slot = DraftSlotOf(args, row_idx);
  if (slot < 0) return;
  lanes.ForEach(1, [&](int) {
    const int32_t num_keys = args.draft.seq_lens[row_idx];  // of the pass before; 0: it was inert
    if (num_keys == 0) return;
    // Of a tree those on a path count.
    args.slots.drafted_len[slot] =
        IsTree(args) && args.pass > 1 ? args.arrays.context_lens[row_idx] + args.pass : num_keys;
  });
  const int first = FirstNode(args);
  lanes.ForEach(EndNode(args) - first, [&](int i) {
    const int node = first + i;
    if (node > args.arrays.num_proposed[row_idx]) return;
    const int32_t chosen = ChosenOfNode(args, row_idx, node);
    if (chosen < 0) return;
    const int64_t token = int64_t{args.arrays.query_start_loc[row_idx]} + node;
    args.arrays.token_ids[token] = chosen;
    if (args.arrays.draft_logits != nullptr) {
      args.arrays.draft_logits[token] = (args.pass - 1) * args.logits_stride + row_idx;
    }
  });
}

// Writes what a tree's pass has beyond other rows: its nodes are all at one depth, see their paths,
// and have logits each. `first`: of the row's tokens.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteLevelRow(const Lanes& lanes, const DraftRowsArgs& args, int row_idx,
                                       const CheckedRow& row, int64_t first) {
  const int width = EndNode(args) - FirstNode(args);
  const int64_t first_in_step = args.arrays.query_start_loc[row_idx];
  lanes.ForEach(width, [&](int i) {
    const int64_t logits_row = int64_t{row_idx} * width + i;
    args.draft.logits_indices[logits_row] = row.is_live() ? static_cast<int32_t>(first + i) : 0;
    args.draft.sample_slot[logits_row] = row.is_live() ? row.table_row : -1;
    args.draft.sample_offset[logits_row] = row.is_live() ? args.pass : 0;
    if (!row.is_live()) return;
    args.draft.positions[first + i] = args.arrays.context_lens[row_idx] + args.pass;
    args.draft.tail_mask[first + i] = args.arrays.tail_mask[first_in_step + FirstNode(args) + i];
  });
}

// Writes a row of the pass. `start`: the number of tokens of all previous rows. After
// KeepDraftPass() of the same row. Lanes: base/lanes.h.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteDraftPassRow(const Lanes& lanes, const DraftRowsArgs& args,
                                           const RowArgs& rows, int row_idx, int64_t start) {
  CheckedRow row = DraftPassRowOf(args, rows, row_idx);
  row.fault = FaultOfPlace(lanes, rows, row, start);
  const TokenRange tokens = TokensOf(rows, row, start);
  lanes.ForEach(static_cast<int>(tokens.end - tokens.first), [&](int i) {
    if (row.is_live()) {
      WriteNewToken(rows, row, i, tokens.first + i,
                    DraftTokenId(args, row_idx, row.table_row, int64_t{row.context_len} + i, i));
    } else {
      WriteInertToken(rows, tokens.first + i);
    }
  });
  const bool is_level = IsTree(args) && args.pass > 0;
  lanes.ForEach(1, [&](int) {
    WriteBatchRow(rows, row_idx, row, tokens.first);
    args.draft.encoder_lens[row_idx] = 0;
    if (args.draft.has_trees()) {
      // Nodes up to the last of the pass.
      args.draft.tail_len[row_idx] = is_level && row.is_live() ? EndNode(args) : 0;
    }
    if (is_level) return;
    // A row that is still behind its sequence chooses nothing.
    const bool samples = row.is_live() && int64_t{row.context_len} + row.query_len >
                                              args.arrays.context_lens[row_idx];
    args.draft.sample_slot[row_idx] = samples ? row.table_row : -1;
    args.draft.sample_offset[row_idx] = row.is_live() ? args.pass : 0;
  });
  if (!is_level) return;
  lanes.Sync();
  WriteLevelRow(lanes, args, row_idx, row, tokens.first);
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_DRAFT_ROWS_ARGS_H_
