// Arguments of the rows of a draft model's passes, and the work on one row; shared by the host and
// device forms (attention/speculation/draft_rows.h).

#ifndef REPRISE_ATTENTION_SPECULATION_DRAFT_ROWS_ARGS_H_
#define REPRISE_ATTENTION_SPECULATION_DRAFT_ROWS_ARGS_H_

#include <cstdint>

#include "reprise/attention/metadata/batch_rows.h"
#include "reprise/attention/speculation/token_history.h"
#include "reprise/attention/speculation/token_tree.h"
#include "reprise/base/host_device.h"
#include "reprise/base/row_fault.h"

namespace reprise {

// The batch that will verify the drafts.
struct DraftedBatch {
  // [num_tokens] of a row that gets drafts: the sequence's last token, then the drafts, which are
  // written.
  int32_t* token_ids = nullptr;
  const int32_t* query_start_loc = nullptr;  // [num_rows + 1]
  const int32_t* context_lens = nullptr;     // [num_rows] position of the sequence's last token
  const int32_t* slot_of_row = nullptr;      // [num_rows] table row of the sequence
  const int32_t* num_proposed = nullptr;     // [num_rows] drafts that the row gets; 0: none
  TreeParents parents = {};                  // trees only. Nodes are numbered level by level
  // [num_tokens] for each draft the row of kept logits that it was chosen from. May be absent; only
  // of chains.
  int32_t* draft_logits = nullptr;
  int num_tokens = 0;
};

// The level of a tree that a pass is about: nodes of the row's tree by number, level by level.
struct DraftLevel {
  int num_levels = 0;    // passes: one for each level of drafts. 0: drafts are chains
  int first_before = 0;  // nodes [first_before, first) had their tokens in the pass before, and
  int first = 0;         // nodes [first, end) follow them: they have theirs in this one
  int end = 0;
  // [max_drafts] number of each draft among the children of its parent. `chosen` is then
  // [ranks, num_rows, first - first_before]: by rank, then row, then parent, ranks rank_stride
  // elements apart. Absent: `chosen` is [num_rows, end - first], by row, then node.
  const int32_t* ranks = nullptr;
  int64_t rank_stride = 0;
};

struct DraftRowsArgs {
  // The pass. Read: the tables and groups of the sequences, whose table rows are their slots; a group
  // of KvRetention::kCross is not read. num_rows and num_tokens (NumDraftTokens()) are padded.
  // Written: `arrays`, without tail_len and tail_mask.
  RowArgs rows = {};
  // Further arrays of the pass. encoder_lens [num_rows] and common_prefix_len [1] are set to 0; both
  // may be absent.
  int32_t* sample_slot = nullptr;    // [num_logits] the slot that chooses a draft; -1: none
  int32_t* sample_offset = nullptr;  // [num_logits] depth of the node; in a chain the pass
  int32_t* encoder_lens = nullptr;
  int32_t* common_prefix_len = nullptr;
  int32_t* tail_len = nullptr;    // [num_rows] of trees: the nodes so far; 0: a chain
  uint64_t* tail_mask = nullptr;  // [num_tokens] of trees
  int num_logits = 0;

  // State of the sequences by slot.
  int32_t* drafted_len =
      nullptr;  // tokens that the draft model has seen: its keys of them are cached
  TokenHistory history = {};

  DraftedBatch step = {};
  // [num_rows] what the draft model chose in the pass before, by Sample() with sample_slot: negative
  // for rows that did not sample. For trees see DraftLevel::ranks. Read in passes after the first.
  const int32_t* chosen = nullptr;
  DraftLevel level = {};
  // Rows of the kept logits of the passes from pass to pass (DraftedBatch::draft_logits).
  int logits_stride = 0;
  int pass = 0;        // 0 to NumPasses(); in the last there are no rows, only drafts to keep
  int max_drafts = 0;  // maximum number of drafts of a row, 1 to 63
};

// Padded number of tokens of a pass. A row has at most 1 + max_drafts tokens in the first pass, and
// `width` in later passes: the nodes of the level, 1 in a chain.
constexpr int NumDraftTokens(int pass, int num_rows, int max_drafts, int width = 1) {
  return pass == 0 ? num_rows * (1 + max_drafts) : num_rows * width;
}

REPRISE_HOST_DEVICE constexpr bool IsTree(const DraftRowsArgs& args) {
  return args.level.num_levels > 0;
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

// The parents of a row's nodes. REQUIRES: IsTree(), and the row has a slot (DraftSlotOf()).
REPRISE_HOST_DEVICE constexpr const int32_t* ParentsOf(const DraftRowsArgs& args, int row_idx) {
  return args.step.parents.row(row_idx, args.step.query_start_loc[row_idx]);
}

// The token that the draft model chose for `node` of a row in the pass before; negative: none.
// REQUIRES: a node of the pass, which is not the first; the row has a slot.
REPRISE_HOST_DEVICE constexpr int32_t ChosenOfNode(const DraftRowsArgs& args, int row_idx,
                                                   int node) {
  if (!IsTree(args)) return args.chosen[row_idx];
  const DraftLevel& level = args.level;
  if (level.ranks == nullptr) {
    return args.chosen[int64_t{row_idx} * (level.end - level.first) + node - level.first];
  }
  const int32_t parent = ParentsOf(args, row_idx)[node];
  if (parent < level.first_before || parent >= level.first) return -1;
  const int64_t width = level.first - level.first_before;
  return args.chosen[level.ranks[node - 1] * level.rank_stride + row_idx * width + parent -
                     level.first_before];
}

// Depth of a node of the pass; 0: it does not follow a node of an earlier level. REQUIRES: as
// ParentsOf().
REPRISE_HOST_DEVICE constexpr int DepthOfNode(const DraftRowsArgs& args, int row_idx, int node) {
  const int32_t* const parents = ParentsOf(args, row_idx);
  const int depth = parents[node] < FirstNode(args) ? DepthOf(parents, node) : 0;
  return depth > 0 ? depth : 0;
}

// The rows of a pass.
constexpr RowArgs DraftPassRowArgs(const DraftRowsArgs& args) {
  RowArgs rows = args.rows;
  rows.max_query_len = args.pass == 0 ? 1 + args.max_drafts : EndNode(args) - FirstNode(args);
  // All nodes of a level have logits.
  if (IsTree(args) && args.pass > 0) rows.arrays.logits_indices = nullptr;
  return PrepareRows(rows);
}

// The slot of a row that gets drafts, else -1. The row's drafts are within the step's tokens.
REPRISE_HOST_DEVICE constexpr int32_t DraftSlotOf(const DraftRowsArgs& args, int row_idx) {
  const int32_t slot = args.step.slot_of_row[row_idx];
  const int64_t num_proposed = args.step.num_proposed[row_idx];
  if (num_proposed <= 0 || !HasTableRow(args.rows.table, slot)) return -1;
  const int64_t first = args.step.query_start_loc[row_idx];
  return first >= 0 && first + num_proposed < args.step.num_tokens ? slot : -1;
}

// A row of the pass, checked except for its blocks and the paths of its nodes. A row that would pass
// the end of its table has no tokens. Any thread may place rows while other threads write rows: this
// reads nothing that a pass writes, except for drafted_len, which only the first pass reads and only
// later passes write.
REPRISE_HOST_DEVICE constexpr CheckedRow DraftPassRowOf(const DraftRowsArgs& args,
                                                        const RowArgs& rows, int row_idx) {
  const int32_t slot = DraftSlotOf(args, row_idx);
  if (slot < 0) return {};
  const int64_t last = args.step.context_lens[row_idx];  // position of the slot's last token
  if (last < 0) return {.fault = RowFault::kLength};
  RowRequest request;
  request.is_padded = false;
  request.table_row = slot;
  if (args.pass == 0) {
    const int64_t drafted = args.drafted_len[slot];
    const int64_t most = 1 + int64_t{args.max_drafts};
    request.context_len = drafted < last ? drafted : last;
    request.query_len = last + 1 - request.context_len;
    if (request.query_len > most) request.query_len = most;
  } else {
    // A level without children is not fed.
    const int first = FirstNode(args);
    if (EndNode(args) > args.step.num_proposed[row_idx]) return {};
    if (ChosenOfNode(args, row_idx, first) < 0) return {};
    request.context_len = last + first;
    request.query_len = EndNode(args) - first;
  }
  if (request.context_len + request.query_len > rows.context_limit) return {};
  return CheckRow(rows, request);
}

// The id of the i-th token of a row of the pass, at `position`.
REPRISE_HOST_DEVICE constexpr int32_t DraftTokenId(const DraftRowsArgs& args, int row_idx,
                                                   int32_t slot, int64_t position, int i) {
  if (args.pass > 0) {
    const int32_t chosen = ChosenOfNode(args, row_idx, FirstNode(args) + i);
    return chosen > 0 ? chosen : 0;
  }
  if (position == args.step.context_lens[row_idx]) {
    return args.step.token_ids[args.step.query_start_loc[row_idx]];
  }
  const TokenHistory& history = args.history;
  const int32_t token = position < history.stride ? history.row(slot)[position] : 0;
  return token > 0 ? token : 0;  // -1: unknown
}

// Takes over what the pass before has left of a row: its drafts, and its keys, which are in the
// cache by now. REQUIRES: pass >= 1. Lanes: base/lanes.h.
template <typename Lanes>
REPRISE_HOST_DEVICE void KeepDraftPass(const Lanes& lanes, const DraftRowsArgs& args, int row_idx) {
  const int32_t slot = DraftSlotOf(args, row_idx);
  if (slot < 0) return;
  lanes.ForEach(1, [&](int) {
    const int32_t num_keys =
        args.rows.arrays.seq_lens[row_idx];  // from the previous pass; 0: inert
    if (num_keys == 0) return;
    // The keys of a path of a tree count.
    const int64_t path_end = int64_t{args.step.context_lens[row_idx]} + args.pass;
    args.drafted_len[slot] =
        IsTree(args) && args.pass > 1 ? static_cast<int32_t>(path_end) : num_keys;
  });
  const int first = FirstNode(args);
  lanes.ForEach(EndNode(args) - first, [&](int i) {
    const int node = first + i;
    if (node > args.step.num_proposed[row_idx]) return;
    const int32_t chosen = ChosenOfNode(args, row_idx, node);
    if (chosen < 0) return;
    const int64_t token = int64_t{args.step.query_start_loc[row_idx]} + node;
    args.step.token_ids[token] = chosen;
    if (args.step.draft_logits != nullptr) {
      args.step.draft_logits[token] = (args.pass - 1) * args.logits_stride + row_idx;
    }
  });
}

// Writes the entries of a level's nodes that differ from tokens of a chain: positions count their
// depth, they see their paths, and all have logits. `first`: index of the row's first token.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteLevelRow(const Lanes& lanes, const DraftRowsArgs& args, int row_idx,
                                       const CheckedRow& row, int64_t first) {
  const int first_node = FirstNode(args);
  const int width = EndNode(args) - first_node;
  lanes.ForEach(width, [&](int i) {
    const int64_t logits_row = int64_t{row_idx} * width + i;
    const int depth = row.is_live() ? DepthOfNode(args, row_idx, first_node + i) : 0;
    if (args.rows.arrays.logits_indices != nullptr) {
      args.rows.arrays.logits_indices[logits_row] =
          row.is_live() ? static_cast<int32_t>(first + i) : 0;
    }
    args.sample_slot[logits_row] = row.is_live() ? row.table_row : -1;
    args.sample_offset[logits_row] = depth;
    if (!row.is_live()) return;
    args.rows.arrays.positions[first + i] = args.step.context_lens[row_idx] + depth;
    args.tail_mask[first + i] = PathMask(ParentsOf(args, row_idx), first_node + i);
  });
}

// Writes a row of the pass. `start`: the number of tokens of all previous rows. After
// KeepDraftPass() of the same row. Lanes: base/lanes.h.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteDraftPassRow(const Lanes& lanes, const DraftRowsArgs& args,
                                           const RowArgs& rows, int row_idx, int64_t start) {
  CheckedRow row = DraftPassRowOf(args, rows, row_idx);
  row.fault = FaultOfPlace(lanes, rows, row, start);
  const bool is_level = IsTree(args) && args.pass > 0;
  if (is_level && row.is_live() && lanes.Any(EndNode(args) - FirstNode(args), [&](int i) {
        return DepthOfNode(args, row_idx, FirstNode(args) + i) == 0;
      })) {
    row.fault = RowFault::kTree;
  }
  const TokenRange tokens = TokensOf(rows, row, start);
  lanes.ForEach(static_cast<int>(tokens.end - tokens.first), [&](int i) {
    if (row.is_live()) {
      WriteNewToken(rows, row, i, tokens.first + i,
                    DraftTokenId(args, row_idx, row.table_row, int64_t{row.context_len} + i, i));
    } else {
      WriteInertToken(rows, tokens.first + i);
    }
  });
  lanes.ForEach(1, [&](int) {
    WriteBatchRow(rows, row_idx, row, tokens.first);
    if (args.encoder_lens != nullptr) args.encoder_lens[row_idx] = 0;
    if (args.tail_len != nullptr) {
      // Nodes up to the last of the pass.
      args.tail_len[row_idx] = is_level && row.is_live() ? EndNode(args) : 0;
    }
    if (is_level) return;
    // A row that has not caught up with its sequence chooses nothing.
    const bool samples =
        row.is_live() && int64_t{row.context_len} + row.query_len > args.step.context_lens[row_idx];
    args.sample_slot[row_idx] = samples ? row.table_row : -1;
    args.sample_offset[row_idx] = row.is_live() ? args.pass : 0;
  });
  if (!is_level) return;
  lanes.Sync();
  WriteLevelRow(lanes, args, row_idx, row, tokens.first);
}

// Writes the values of the pass that belong to no row.
REPRISE_HOST_DEVICE constexpr void WriteDraftPassEnd(const DraftRowsArgs& args, int64_t end) {
  args.rows.arrays.query_start_loc[args.rows.num_rows] = static_cast<int32_t>(end);
  if (args.common_prefix_len != nullptr) *args.common_prefix_len = 0;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_DRAFT_ROWS_ARGS_H_
