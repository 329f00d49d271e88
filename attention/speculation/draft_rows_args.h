// Arguments of DraftRows, and the functions that build one row. Shared by the host and device forms
// (attention/speculation/draft_rows.h).

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
  // [num_tokens] for a row that gets drafts, the sequence's last token (read) and the drafts
  // (written).
  int32_t* token_ids = nullptr;
  const int32_t* query_start_loc = nullptr;  // [num_rows + 1]
  const int32_t* context_lens = nullptr;     // [num_rows] position of the sequence's last token
  const int32_t* slot_of_row = nullptr;      // [num_rows] table row of the sequence
  const int32_t* num_proposed = nullptr;     // [num_rows] number of drafts of the row
  TreeParents parents = {};                  // trees only. Nodes are numbered level by level
  // [num_tokens] for each draft, the row of the kept logits that the draft was chosen from. Chains
  // only; may be absent.
  int32_t* draft_logits = nullptr;
  int num_tokens = 0;
};

// The level of the trees that a pass processes. Nodes are numbered level by level.
struct DraftLevel {
  int num_levels = 0;    // number of passes: one per level of drafts. 0: drafts are chains
  int first_before = 0;  // nodes [first_before, first) are the level of the previous pass
  int first = 0;         // nodes [first, end) are the level of this pass
  int end = 0;
  // [max_drafts] rank of each draft: its index among the children of its parent. `chosen` is then
  // [ranks, num_rows, first - first_before], indexed by rank, row and parent; consecutive ranks are
  // rank_stride elements apart. Absent: `chosen` is [num_rows, end - first], by row and node.
  const int32_t* ranks = nullptr;
  int64_t rank_stride = 0;
};

struct DraftRowsArgs {
  // The rows of the pass. Read: the tables and groups of the sequences; a sequence's table row is
  // its slot. Groups of KvRetention::kCross are not read. num_rows and num_tokens
  // (NumDraftTokens()) are padded sizes. Written: `arrays`, except tail_len and tail_mask.
  RowArgs rows = {};
  // Further arrays of the pass. encoder_lens [num_rows] and common_prefix_len [1] are set to 0;
  // both may be absent.
  int32_t* sample_slot = nullptr;    // [num_logits] slot that chooses a draft; -1: no draft
  int32_t* sample_offset = nullptr;  // [num_logits] depth of the node; for chains, the pass
  int32_t* encoder_lens = nullptr;
  int32_t* common_prefix_len = nullptr;
  int32_t* tail_len = nullptr;    // [num_rows] trees only: number of nodes so far; 0: chain
  uint64_t* tail_mask = nullptr;  // [num_tokens] trees only
  int num_logits = 0;

  // State of the sequences by slot.
  int32_t* drafted_len = nullptr;  // number of tokens whose draft-model keys are in the cache
  TokenHistory history = {};

  DraftedBatch step = {};
  // [num_rows] the tokens that the draft model chose in the previous pass, by Sample() with
  // sample_slot; negative for rows that did not sample. For trees see DraftLevel::ranks. Not read
  // in the first pass.
  const int32_t* chosen = nullptr;
  DraftLevel level = {};
  // Number of rows of kept logits per pass (DraftedBatch::draft_logits).
  int logits_stride = 0;
  int pass = 0;        // 0 to NumPasses(); the last has no rows and only stores drafts
  int max_drafts = 0;  // maximum number of drafts of a row, 1 to 63
};

// Returns the padded number of tokens of a pass. A row has at most 1 + max_drafts tokens in the
// first pass, and at most `width` tokens in later passes: the number of nodes of the level, or 1 in
// a chain.
constexpr int NumDraftTokens(int pass, int num_rows, int max_drafts, int width = 1) {
  return pass == 0 ? num_rows * (1 + max_drafts) : num_rows * width;
}

REPRISE_HOST_DEVICE constexpr bool IsTree(const DraftRowsArgs& args) {
  return args.level.num_levels > 0;
}

constexpr int NumPasses(const DraftRowsArgs& args) {
  return IsTree(args) ? args.level.num_levels : args.max_drafts;
}

// Return the nodes of the pass, [FirstNode(), EndNode()). In a chain, this is node `pass`.
REPRISE_HOST_DEVICE constexpr int FirstNode(const DraftRowsArgs& args) {
  return IsTree(args) ? args.level.first : args.pass;
}
REPRISE_HOST_DEVICE constexpr int EndNode(const DraftRowsArgs& args) {
  return IsTree(args) ? args.level.end : args.pass + 1;
}

// Returns the parents of a row's nodes. REQUIRES: IsTree(), and the row has a slot (DraftSlotOf()).
REPRISE_HOST_DEVICE constexpr const int32_t* ParentsOf(const DraftRowsArgs& args, int row_idx) {
  return args.step.parents.row(row_idx, args.step.query_start_loc[row_idx]);
}

// Returns the token that the draft model chose for `node` of a row in the previous pass; negative
// if it chose no token. REQUIRES: `node` is a node of the pass; the pass is not the first; the row
// has a slot.
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

// Returns the depth of a node of the pass, or 0 if the node does not follow a node of an earlier
// level. REQUIRES: as for ParentsOf().
REPRISE_HOST_DEVICE constexpr int DepthOfNode(const DraftRowsArgs& args, int row_idx, int node) {
  const int32_t* const parents = ParentsOf(args, row_idx);
  const int depth = parents[node] < FirstNode(args) ? DepthOf(parents, node) : 0;
  return depth > 0 ? depth : 0;
}

// Returns the row arguments of the pass.
constexpr RowArgs DraftPassRowArgs(const DraftRowsArgs& args) {
  RowArgs rows = args.rows;
  rows.max_query_len = args.pass == 0 ? 1 + args.max_drafts : EndNode(args) - FirstNode(args);
  // WriteLevelRow() writes logits_indices: all nodes of a level have logits.
  if (IsTree(args) && args.pass > 0) rows.arrays.logits_indices = nullptr;
  return PrepareRows(rows);
}

// Returns the slot of a row that gets drafts, and -1 for other rows. The drafts of a row with a
// slot are within the step's tokens.
REPRISE_HOST_DEVICE constexpr int32_t DraftSlotOf(const DraftRowsArgs& args, int row_idx) {
  const int32_t slot = args.step.slot_of_row[row_idx];
  const int64_t num_proposed = args.step.num_proposed[row_idx];
  if (num_proposed <= 0 || !HasTableRow(args.rows.table, slot)) return -1;
  const int64_t first = args.step.query_start_loc[row_idx];
  return first >= 0 && first + num_proposed < args.step.num_tokens ? slot : -1;
}

// Returns a row of the pass after all checks except for its blocks and the paths of its nodes. A
// row that would exceed its table has no tokens. May run while other threads write rows: the
// function reads no value that the same pass writes. (Only the first pass reads drafted_len, and
// only later passes write it.)
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
    // The last level of a row has no children and is not fed.
    const int first = FirstNode(args);
    if (EndNode(args) > args.step.num_proposed[row_idx]) return {};
    if (ChosenOfNode(args, row_idx, first) < 0) return {};
    request.context_len = last + first;
    request.query_len = EndNode(args) - first;
  }
  if (request.context_len + request.query_len > rows.context_limit) return {};
  return CheckRow(rows, request);
}

// Returns the id of the i-th token of a row of the pass, at `position`.
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

// Stores the results of the previous pass for a row: writes the drafts that the pass chose to the
// step's token_ids, and counts the keys of the pass, which are now in the cache, in drafted_len.
// REQUIRES: pass >= 1. Lanes: base/lanes.h.
template <typename Lanes>
REPRISE_HOST_DEVICE void KeepDraftPass(const Lanes& lanes, const DraftRowsArgs& args, int row_idx) {
  const int32_t slot = DraftSlotOf(args, row_idx);
  if (slot < 0) return;
  lanes.ForEach(1, [&](int) {
    const int32_t num_keys =
        args.rows.arrays.seq_lens[row_idx];  // from the previous pass; 0: inert
    if (num_keys == 0) return;
    // For a tree, only the keys of one path count.
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

// Writes the entries in which a level's nodes differ from the tokens of a chain: positions depend
// on depth, masks select the paths, and all nodes have logits. `first` is the index of the row's
// first token.
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

// Writes a row of the pass. `start` is the number of tokens of all previous rows.
// REQUIRES: in passes after the first, KeepDraftPass() has been called for the row. Lanes:
// base/lanes.h.
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
      // The nodes up to the end of the level.
      args.tail_len[row_idx] = is_level && row.is_live() ? EndNode(args) : 0;
    }
    if (is_level) return;
    // A row that has not caught up with its sequence does not sample.
    const bool samples =
        row.is_live() && int64_t{row.context_len} + row.query_len > args.step.context_lens[row_idx];
    args.sample_slot[row_idx] = samples ? row.table_row : -1;
    args.sample_offset[row_idx] = row.is_live() ? args.pass : 0;
  });
  if (!is_level) return;
  lanes.Sync();
  WriteLevelRow(lanes, args, row_idx, row, tokens.first);
}

// Writes the values of the pass that do not belong to a row.
REPRISE_HOST_DEVICE constexpr void WriteDraftPassEnd(const DraftRowsArgs& args, int64_t end) {
  args.rows.arrays.query_start_loc[args.rows.num_rows] = static_cast<int32_t>(end);
  if (args.common_prefix_len != nullptr) *args.common_prefix_len = 0;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_DRAFT_ROWS_ARGS_H_
