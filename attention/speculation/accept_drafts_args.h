// Arguments of AcceptDrafts, and the functions that process one row. Shared by the host and device
// forms (attention/speculation/accept_drafts.h).

#ifndef REPRISE_ATTENTION_SPECULATION_ACCEPT_DRAFTS_ARGS_H_
#define REPRISE_ATTENTION_SPECULATION_ACCEPT_DRAFTS_ARGS_H_

#include <cstdint>

#include "reprise/attention/speculation/missing_token.h"
#include "reprise/attention/speculation/token_history.h"
#include "reprise/attention/speculation/token_tree.h"
#include "reprise/base/host_device.h"
#include "reprise/base/row_fault.h"

namespace reprise {

// State of the sequences by slot, which AcceptDrafts() updates. Each array may be absent.
struct AcceptedSlots {
  // [num_slots] number of tokens whose keys are in the cache. Before the call, seq_len includes the
  // row's first token but no drafts.
  int32_t* seq_len = nullptr;
  int32_t* last_token = nullptr;    // [num_slots] newest token, whose keys are not in the cache yet
  int64_t* sample_index = nullptr;  // [num_slots] number of tokens sampled so far
  int32_t* drafted_len = nullptr;   // [num_slots] number of tokens that a draft model has seen
  TokenHistory history = {};
  int num_slots = 0;
};

struct AcceptDraftsArgs {
  // The verified batch, as its builder wrote it. A row with drafts has one verified token, followed
  // by the drafts.
  const int32_t* query_start_loc = nullptr;  // [num_rows + 1]
  const int32_t* context_lens = nullptr;     // [num_rows] keys in the cache before the batch
  const int32_t* token_ids = nullptr;        // [num_tokens]
  TreeParents parents = {};                  // the tree of each row's tokens; absent: chains
  // [num_groups, group_stride] the cache slot of each token's keys; negative: no slot. Read only if
  // parents or place_tokens are given.
  const int64_t* slot_mapping = nullptr;
  int64_t group_stride = 0;
  int num_groups = 1;

  // The results of verification.
  // [num_logits] the token that the target model chooses after a token; negative: it cannot choose.
  const int32_t* chosen = nullptr;
  // [num_rows] index in `chosen` of the row's first token; negative: the row has no drafts. All
  // tokens of the row except the last have consecutive indices from there. The last token of row r
  // has index r. Absent: `chosen` has one entry per token of the batch, and all rows may have
  // drafts.
  const int32_t* first_verified = nullptr;
  // [num_rows] slot of the row's sequence; negative: the row does not sample.
  const int32_t* slot_of_row = nullptr;

  int num_rows = 0;
  int num_tokens = 0;
  int num_logits = 0;
  // Maximum number of drafts per row, 0 to 63. Further drafts of a row are not accepted.
  int max_drafts = 0;
  AcceptedSlots slots = {};
  PlaceTokens place_tokens = {};  // receives the same tokens as slots.history; tokens may be null

  // Results. On a GPU, tokens, num_new and new_tokens may be mapped host memory.
  int32_t* tokens = nullptr;   // [num_rows] the row's last new token, kNotSampled or kNanRow
  int32_t* num_new = nullptr;  // [num_rows] number of new tokens; 0 with kNotSampled and kNanRow
  // [num_rows, new_tokens_stride] only the first num_new entries of a row are written
  int32_t* new_tokens = nullptr;
  int64_t new_tokens_stride = 0;
  // [1] 1 + index of the output that receives the three results above; 0: no output. Outputs are
  // output_stride elements apart. Not read if output_stride is 0.
  const int32_t* output = nullptr;
  int64_t output_stride = 0;
  // [num_rows] index in `chosen` of the last new token; -1: no new token. May be absent.
  int32_t* last_place = nullptr;
  // [num_groups, num_rows, max_drafts] moves of keys and values, in order: source and destination
  // slot in the group's cache. Both are -1: no move. Written only if parents are given.
  int64_t* move_from = nullptr;
  int64_t* move_to = nullptr;
  int32_t* row_faults = nullptr;  // [num_rows]; may be absent
};

REPRISE_HOST_DEVICE constexpr bool HasOutput(const AcceptDraftsArgs& args) {
  return args.output_stride == 0 || *args.output > 0;
}
REPRISE_HOST_DEVICE constexpr int64_t OutputOffset(const AcceptDraftsArgs& args) {
  return args.output_stride == 0 ? 0 : (*args.output - 1) * args.output_stride;
}

// A row whose drafts are verified.
struct DraftedRow {
  int32_t slot = -1;        // -1: the row does not sample
  int32_t num_drafts = 0;   // all drafts of the row
  int64_t first_token = 0;  // index in token_ids; 0 without drafts
  int64_t first_place = 0;  // index in `chosen` of the first token; read with drafts only
  int64_t last_place = 0;   // index in `chosen` of the last token
  int32_t context_len = 0;  // 0 without drafts
  RowFault fault = RowFault::kNone;
};

REPRISE_HOST_DEVICE constexpr DraftedRow DraftedRowOf(const AcceptDraftsArgs& args, int row_idx) {
  DraftedRow row;
  const int32_t slot = args.slot_of_row[row_idx];
  if (slot < 0) return row;
  if (slot >= args.slots.num_slots) {
    row.fault = RowFault::kTableRow;
    return row;
  }
  const bool is_by_token = args.first_verified == nullptr;
  row.last_place = row_idx;
  if (!is_by_token && args.first_verified[row_idx] < 0) {
    row.slot = slot;
    return row;
  }
  const int64_t first = args.query_start_loc[row_idx];
  const int64_t query_len = args.query_start_loc[row_idx + 1] - first;
  row.first_place = is_by_token ? first : args.first_verified[row_idx];
  if (first < 0 || query_len < 1 || first + query_len > args.num_tokens ||
      args.context_lens[row_idx] < 0 || row.first_place + query_len - 1 > args.num_logits) {
    row.fault = RowFault::kLength;
    return row;
  }
  row.slot = slot;
  row.num_drafts = static_cast<int32_t>(query_len - 1);
  row.first_token = first;
  row.context_len = args.context_lens[row_idx];
  if (is_by_token) row.last_place = first + query_len - 1;
  return row;
}

// Returns the maximum number of drafts that the row may accept.
REPRISE_HOST_DEVICE constexpr int MaxAccepted(const AcceptDraftsArgs& args, const DraftedRow& row) {
  return row.num_drafts < args.max_drafts ? row.num_drafts : args.max_drafts;
}

// Returns the index in `chosen` of the choice after the row's token `i`, 0 to num_drafts.
REPRISE_HOST_DEVICE constexpr int64_t PlaceAt(const DraftedRow& row, int i) {
  return i < row.num_drafts ? row.first_place + i : row.last_place;
}

// Stores the draft that is the row's `i`-th new token, for drafters: in the sequence's history, and
// in place_tokens at the slot that holds its keys after the moves.
REPRISE_HOST_DEVICE constexpr void KeepAccepted(const AcceptDraftsArgs& args, const DraftedRow& row,
                                                int i, int32_t token) {
  const TokenHistory& history = args.slots.history;
  const int64_t position = int64_t{row.context_len} + 1 + i;
  if (history.tokens != nullptr && position < history.stride) {
    history.row(row.slot)[position] = token;
  }
  const PlaceTokens& places = args.place_tokens;
  if (places.tokens == nullptr) return;
  const int64_t* const slots = args.slot_mapping + places.group * args.group_stride;
  places.Keep(slots[row.first_token + 1 + i], token);
}

// Number of new tokens of a row, and the index in `chosen` of the last new token.
struct AcceptedTokens {
  int count = 0;
  int64_t last_place = -1;
};

// Accepts the drafts of a chain, up to the first draft that differs from the model's choice.
template <typename Lanes>
REPRISE_HOST_DEVICE AcceptedTokens AcceptChain(const Lanes& lanes, const AcceptDraftsArgs& args,
                                               const DraftedRow& row, int32_t* new_tokens) {
  const int32_t* const drafts = args.token_ids + row.first_token + 1;
  const int num_accepted = lanes.First(0, MaxAccepted(args, row), [&](int i) {
    const int32_t chosen = args.chosen[PlaceAt(row, i)];
    return chosen < 0 || chosen != drafts[i];
  });
  const bool has_more = args.chosen[PlaceAt(row, num_accepted)] >= 0;
  const int num_new = num_accepted + (has_more ? 1 : 0);
  lanes.ForEach(num_new, [&](int i) {
    const int32_t token = args.chosen[PlaceAt(row, i)];
    new_tokens[i] = token;
    if (i < num_new - 1) KeepAccepted(args, row, i, token);
  });
  return {num_new, num_new > 0 ? PlaceAt(row, num_new - 1) : -1};
}

// Returns the index of a row's first move in a group.
REPRISE_HOST_DEVICE constexpr int64_t FirstMove(const AcceptDraftsArgs& args, int row_idx,
                                                int group) {
  return (int64_t{group} * args.num_rows + row_idx) * args.max_drafts;
}

// Adds the moves of an accepted node's keys to the row's i-th slot, where `i` is the index of the
// node in the path, at least 1.
template <typename Lanes>
REPRISE_HOST_DEVICE void MoveAccepted(const Lanes& lanes, const AcceptDraftsArgs& args, int row_idx,
                                      const DraftedRow& row, int node, int i) {
  if (node == i) return;
  lanes.ForEach(args.num_groups, [&](int group) {
    const int64_t* const slots = args.slot_mapping + group * args.group_stride + row.first_token;
    if (slots[node] < 0 || slots[i] < 0) return;  // the group does not hold these keys
    const int64_t move = FirstMove(args, row_idx, group) + i - 1;
    args.move_from[move] = slots[node];
    args.move_to[move] = slots[i];
  });
}

// Accepts a path of a tree. Each node of the path after the first is the child whose token the
// model chose after the previous node.
template <typename Lanes>
REPRISE_HOST_DEVICE AcceptedTokens AcceptPath(const Lanes& lanes, const AcceptDraftsArgs& args,
                                              int row_idx, const DraftedRow& row,
                                              int32_t* new_tokens) {
  const int32_t* const parents = args.parents.row(row_idx, row.first_token);
  const int32_t* const tokens = args.token_ids + row.first_token;
  const int num_nodes = 1 + MaxAccepted(args, row);
  AcceptedTokens accepted;
  // The search considers later nodes only, so the loop ends even if the parents are not a tree.
  for (int node = 0; node < num_nodes;) {
    const int64_t place = PlaceAt(row, node);
    const int32_t chosen = args.chosen[place];
    if (chosen < 0) break;
    const int i = accepted.count;
    if (i > 0) {
      lanes.ForEach(1, [&](int) { KeepAccepted(args, row, i - 1, tokens[node]); });
      MoveAccepted(lanes, args, row_idx, row, node, i);
    }
    lanes.ForEach(1, [&](int) { new_tokens[i] = chosen; });
    accepted = {i + 1, place};
    node = lanes.First(node + 1, num_nodes, [&](int child) {
      return parents[child] == node && tokens[child] == chosen;
    });
  }
  return accepted;
}

// Advances the state of the row's sequence by its new tokens. REQUIRES: the row has a slot.
REPRISE_HOST_DEVICE constexpr void AdvanceAccepted(const AcceptDraftsArgs& args,
                                                   const DraftedRow& row,
                                                   const AcceptedTokens& accepted, int32_t last) {
  const AcceptedSlots& slots = args.slots;
  const int num_new = accepted.count;
  if (slots.last_token != nullptr) slots.last_token[row.slot] = num_new > 0 ? last : 0;
  if (slots.sample_index != nullptr) slots.sample_index[row.slot] += num_new > 0 ? num_new : 1;
  if (slots.seq_len != nullptr && num_new > 1) slots.seq_len[row.slot] += num_new - 1;
  if (slots.drafted_len == nullptr || row.num_drafts == 0) return;
  const int64_t seen = int64_t{row.context_len} + num_new;
  int32_t& drafted_len = slots.drafted_len[row.slot];
  if (drafted_len > seen) drafted_len = static_cast<int32_t>(seen);
}

// Accepts the drafts of a row. Lanes: base/lanes.h.
template <typename Lanes>
REPRISE_HOST_DEVICE void AcceptRow(const Lanes& lanes, const AcceptDraftsArgs& args, int row_idx) {
  if (args.parents.has_trees()) {
    lanes.ForEach(args.num_groups * args.max_drafts, [&](int i) {
      const int64_t move = FirstMove(args, row_idx, i / args.max_drafts) + i % args.max_drafts;
      args.move_from[move] = -1;
      args.move_to[move] = -1;
    });
    lanes.Sync();
  }
  DraftedRow row;
  AcceptedTokens accepted;
  int32_t last = kNotSampled;
  const bool has_output = HasOutput(args);
  const int64_t offset = has_output ? OutputOffset(args) : 0;
  if (has_output) row = DraftedRowOf(args, row_idx);
  if (row.slot >= 0) {
    int32_t* const new_tokens = args.new_tokens + offset + row_idx * args.new_tokens_stride;
    accepted = args.parents.has_trees() ? AcceptPath(lanes, args, row_idx, row, new_tokens)
                                        : AcceptChain(lanes, args, row, new_tokens);
    last = accepted.count > 0 ? args.chosen[accepted.last_place] : kNanRow;
  }
  lanes.ForEach(1, [&](int) {
    if (args.last_place != nullptr) {
      args.last_place[row_idx] = static_cast<int32_t>(accepted.last_place);
    }
    if (args.row_faults != nullptr) args.row_faults[row_idx] = static_cast<int32_t>(row.fault);
    if (!has_output) return;
    args.tokens[offset + row_idx] = last;
    args.num_new[offset + row_idx] = accepted.count;
    if (row.slot >= 0) AdvanceAccepted(args, row, accepted, last);
  });
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_ACCEPT_DRAFTS_ARGS_H_
