// Arguments of acceptance, and the work on one row; shared by the host and device forms
// (attention/speculation/accept_drafts.h).

#ifndef REPRISE_ATTENTION_SPECULATION_ACCEPT_DRAFTS_ARGS_H_
#define REPRISE_ATTENTION_SPECULATION_ACCEPT_DRAFTS_ARGS_H_

#include <cstdint>

#include "reprise/attention/speculation/token_tree.h"
#include "reprise/base/host_device.h"
#include "reprise/base/row_fault.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

struct AcceptDraftsArgs {
  // The batch that was verified, as its builder left it.
  const int32_t* query_start_loc = nullptr;  // [num_rows + 1]
  const int32_t* seq_lens = nullptr;         // [num_rows] drafts included; 0: an inert row
  const int32_t* table_row = nullptr;        // [num_rows]
  const int32_t* token_ids = nullptr;        // [num_tokens]
  const uint64_t* tail_mask = nullptr;       // [num_tokens]; absent: chains

  // The results of verification.
  // [num_rows] accepted tokens of the row, including the first one: 1..query_len.
  const int32_t* num_accepted = nullptr;
  // [num_rows, accepted_stride] their nodes, from node 0 along a path; only with tail_mask.
  const int32_t* accepted_nodes = nullptr;
  int64_t accepted_stride = 0;
  // [num_rows] the token that the target chose after the last accepted one.
  const int32_t* next_token = nullptr;

  BlockTableView table = {};
  int num_rows = 0;
  int num_tokens = 0;
  int max_accepted = 0;  // columns of new_tokens and moves, 1..64; rows accept no more

  // State by table row, changed for live rows. May be absent.
  int32_t* seq_len = nullptr;     // [num_tables] valid keys in the cache after acceptance
  int32_t* last_token = nullptr;  // [num_tables] next_token

  // [num_rows, max_accepted] the accepted drafts, then next_token, then -1.
  int32_t* new_tokens = nullptr;
  int32_t* num_new_tokens = nullptr;  // [num_rows] num_accepted; 0: inert
  int32_t* next_position = nullptr;   // [num_rows] position of next_token; 0: inert
  // [num_rows, max_accepted] source and destination slots of the moves of keys and values; -1, -1
  // for no move. Absent with chains, which need no moves.
  int64_t* move_from = nullptr;
  int64_t* move_to = nullptr;
  int32_t* row_faults = nullptr;  // [num_rows]; may be absent
};

struct AcceptedRow {
  int first_token = 0;
  int query_len = 0;
  int64_t prefix = 0;    // keys before the batch
  int num_accepted = 0;  // 0: inert
  RowFault fault = RowFault::kNone;
};

// Checks everything except whether the nodes are a path.
REPRISE_HOST_DEVICE constexpr AcceptedRow AcceptedRowOf(const AcceptDraftsArgs& args, int row) {
  AcceptedRow accepted;
  const int64_t seq_len = args.seq_lens[row];
  if (seq_len == 0) return accepted;
  const int64_t first = args.query_start_loc[row];
  const int64_t query_len = args.query_start_loc[row + 1] - first;
  const int64_t wanted = args.num_accepted[row];
  if (!HasTableRow(args.table, args.table_row[row])) {
    accepted.fault = RowFault::kTableRow;
  } else if (seq_len < query_len || seq_len > TableCapacity(args.table) || first < 0 ||
             query_len < 1 || first + query_len > args.num_tokens || wanted < 1 ||
             wanted > query_len || wanted > args.max_accepted) {
    accepted.fault = RowFault::kLength;
  } else if (args.next_token[row] < 0) {
    accepted.fault = RowFault::kToken;
  } else {
    accepted = {static_cast<int>(first), static_cast<int>(query_len), seq_len - query_len,
                static_cast<int>(wanted), RowFault::kNone};
  }
  return accepted;
}

// Node of the j-th accepted token. May be any number if the path is invalid.
REPRISE_HOST_DEVICE constexpr int64_t AcceptedNode(const AcceptDraftsArgs& args, int row, int j) {
  return args.tail_mask ? args.accepted_nodes[row * args.accepted_stride + j] : j;
}

// Whether the j-th node follows the one before it, and the 0th is node 0, a root.
REPRISE_HOST_DEVICE constexpr bool FollowsPath(const AcceptDraftsArgs& args, int row,
                                               const AcceptedRow& accepted, int j) {
  const int64_t node = AcceptedNode(args, row, j);
  if (node < 0 || node >= accepted.query_len || node >= kMaxTreeNodes) return false;
  uint64_t before = 0;
  if (j == 0) {
    if (node != 0) return false;
  } else {
    const int64_t parent = AcceptedNode(args, row, j - 1);
    if (parent < 0 || parent >= node) return false;
    before = args.tail_mask[accepted.first_token + parent];
  }
  return args.tail_mask[accepted.first_token + node] == (before | NodeBit(static_cast<int>(node)));
}

template <typename Lanes>
REPRISE_HOST_DEVICE void WriteAcceptedRow(const Lanes& lanes, const AcceptDraftsArgs& args,
                                          int row) {
  AcceptedRow accepted = AcceptedRowOf(args, row);
  if (args.tail_mask && lanes.Any(accepted.num_accepted,
                                  [&](int j) { return !FollowsPath(args, row, accepted, j); })) {
    accepted.num_accepted = 0;
    accepted.fault = RowFault::kPath;
  }
  const int num_accepted = accepted.num_accepted;
  const int32_t table_row = args.table_row[row];
  const int64_t column = static_cast<int64_t>(row) * args.max_accepted;
  lanes.ForEach(args.max_accepted, [&](int j) {
    int32_t token = -1;
    if (j + 1 < num_accepted) {
      token = args.token_ids[accepted.first_token + AcceptedNode(args, row, j + 1)];
    } else if (j + 1 == num_accepted) {
      token = args.next_token[row];
    }
    args.new_tokens[column + j] = token;
    if (!args.move_from) return;
    int64_t from = -1;
    int64_t to = -1;
    const int64_t node = j < num_accepted ? AcceptedNode(args, row, j) : j;
    if (node != j) {
      from = TableSlot(args.table, table_row, accepted.prefix + node);
      to = TableSlot(args.table, table_row, accepted.prefix + j);
      if (from < 0 || to < 0) from = to = -1;  // the batch that wrote there had a block
    }
    args.move_from[column + j] = from;
    args.move_to[column + j] = to;
  });
  lanes.ForEach(1, [&](int) {
    const int64_t seq_len = accepted.prefix + num_accepted;
    if (num_accepted > 0) {
      if (args.seq_len) args.seq_len[table_row] = static_cast<int32_t>(seq_len);
      if (args.last_token) args.last_token[table_row] = args.next_token[row];
    }
    args.num_new_tokens[row] = num_accepted;
    args.next_position[row] = num_accepted > 0 ? static_cast<int32_t>(seq_len) : 0;
    if (args.row_faults) args.row_faults[row] = static_cast<int32_t>(accepted.fault);
  });
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_ACCEPT_DRAFTS_ARGS_H_
