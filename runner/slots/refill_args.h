// The arguments of refill (runner/slots/refill.h), and its rules for a single entry, which the CPU
// and GPU implementations share. Does not depend on LibTorch. All functions are constexpr, so that
// nvcc compiles them for the device.

#ifndef REPRISE_RUNNER_SLOTS_REFILL_ARGS_H_
#define REPRISE_RUNNER_SLOTS_REFILL_ARGS_H_

#include <cstdint>

#include "reprise/attention/metadata/batch_rows.h"
#include "reprise/cache/kv_group.h"
#include "reprise/cache/tables/block_table_view.h"
#include "reprise/runner/slots/slot_rows.h"
#include "reprise/runner/slots/slot_state.h"
#include "reprise/runner/slots/step_arrays.h"
#include "reprise/runner/slots/step_delta.h"

namespace reprise {

struct RefillArgs {
  StepDelta delta;
  SlotState slots;
  StepArrays arrays;
  int padded_num_rows = 0;    // rows of the step's graph; >= delta rows
  int padded_num_tokens = 0;  // tokens of the step's graph; >= delta tokens
  // Number of entries of logits_indices after the entries of the padded rows. Must be 0 without
  // has_scored_rows.
  int padded_num_earlier_logits = 0;
  // Whether to read delta.scores and to write scored_slot and scored_token.
  bool has_scored_rows = false;
  // Whether rows may have drafts to verify. Then sample_slot and sample_offset are written for all
  // logits, and first_verified and num_proposed for all rows. Requires has_scored_rows.
  bool has_drafts = false;
  // [tree_size] SpeculationOptions::tree, the shape of proposed drafts. Drafts beyond tree_size
  // form a chain. Null: all proposed drafts are chains.
  const int32_t* tree = nullptr;
  int tree_size = 0;
  int32_t output = 0;             // value for StepArrays::output
  PlaceTokens place_tokens = {};  // receives the same tokens as the histories; `tokens` may be null
  // Whether a draft model also processes the step's tokens (SlotState::drafted_len).
  bool runs_draft_model = false;
  int block_size = 0;
  int num_blocks = 0;
  KvGroupSpec groups[kMaxKvGroups] = {};  // the first slots.num_groups entries are used
};

// Returns the arguments of the row builders for the step.
constexpr RowArgs RefillRowArgs(const RefillArgs& args) {
  RowArgs rows =
      SlotRowArgs(args.slots, args.block_size, args.num_blocks, args.groups, args.arrays);
  rows.num_rows = args.padded_num_rows;
  rows.num_tokens = args.padded_num_tokens;
  rows.max_query_len = args.padded_num_tokens;
  rows.arrays.row_faults = args.arrays.row_faults;
  return PrepareRows(rows);
}

// A known token whose log-probability a row of logits may report, and its slot. -1, -1: none.
struct ScoredToken {
  int32_t slot = -1;
  int32_t token = -1;
};

constexpr void WriteScoredToken(const StepArrays& arrays, int64_t logits_row,
                                const ScoredToken& scored) {
  arrays.scored_slot[logits_row] = scored.slot;
  arrays.scored_token[logits_row] = scored.token;
}

// Returns the token that a live row's last logits score.
constexpr ScoredToken ScoredByLast(const StepRow& row, const StepRowScore& score) {
  if (row.samples != 0 || score.next_token < 0) return {};
  return {row.slot, score.next_token};
}

// Returns the number of tokens before a live row's last token whose logits are computed.
constexpr int NumEarlierLogits(int query_len, const StepRowScore& score) {
  return score.all_logits != 0 ? query_len - 1 : 0;
}

// The slot whose token is chosen from a row of logits, and how many tokens of the slot's row in the
// step are chosen before that token.
struct ChosenToken {
  int32_t slot = -1;
  int32_t offset = 0;
};

// Writes the arrays for the step's i-th earlier token, which is token `token` of the step. Padding
// has {0, {}, {}}.
REPRISE_HOST_DEVICE constexpr void WriteEarlierLogits(const RefillArgs& args, int64_t i,
                                                      int32_t token, const ScoredToken& scored,
                                                      const ChosenToken& chosen) {
  const int64_t logits_row = args.padded_num_rows + i;
  args.arrays.logits_indices[logits_row] = token;
  WriteScoredToken(args.arrays, logits_row, scored);
  if (!args.has_drafts) return;
  args.arrays.sample_slot[logits_row] = chosen.slot;
  args.arrays.sample_offset[logits_row] = chosen.offset;
}

// Writes the arrays for token `i` of a live row, an earlier token that `next_token` follows.
// `place`: its index among the step's earlier tokens.
REPRISE_HOST_DEVICE constexpr void WriteEarlierLogitsOf(const RefillArgs& args, const StepRow& row,
                                                        int i, int64_t place, int32_t token,
                                                        int32_t next_token) {
  if (row.verifies()) return WriteEarlierLogits(args, place, token, {}, {row.slot, i});
  WriteEarlierLogits(args, place, token, {row.slot, next_token}, {});
}

// Writes the arrays that verification reads for row r. `first_earlier`: index of its first token
// among the step's earlier tokens; -1: none. REQUIRES: args.has_drafts.
REPRISE_HOST_DEVICE constexpr void WriteVerifiedRow(const RefillArgs& args, int r,
                                                    const StepRow& row, bool is_live,
                                                    int first_earlier) {
  const int num_drafts = is_live && row.verifies() ? row.query_len - 1 : 0;
  args.arrays.sample_offset[r] = num_drafts;
  args.arrays.first_verified[r] = num_drafts > 0 ? args.padded_num_rows + first_earlier : -1;
  args.arrays.num_proposed[r] = row.first_host_token < 0 ? num_drafts : 0;
}

// Returns how many of a live row's first tokens are known to be tokens of its sequence. The others
// are drafts that this step verifies.
REPRISE_HOST_DEVICE constexpr int NumVerified(const StepRow& row) {
  return row.verifies() ? 1 : row.query_len;
}

// Returns the i-th token of a live row. `last_token`: the slot's last token.
REPRISE_HOST_DEVICE constexpr int32_t TokenIdOf(const RefillArgs& args, const StepRow& row,
                                                int32_t last_token, int i) {
  const int first = row.verifies() ? row.first_host_token - 1 : row.first_host_token;
  if (i == 0 && (row.verifies() || row.first_host_token < 0)) return last_token;
  return row.first_host_token < 0 ? 0 : args.delta.host_tokens[first + i];
}

// Writes the parent node of a live row's i-th token, which is token `token` of the step. If the
// given parent is not an earlier node, writes the previous node, so that readers may rely on the
// order.
REPRISE_HOST_DEVICE constexpr void WriteParent(const RefillArgs& args, const StepRow& row, int i,
                                               int64_t token) {
  if (!args.has_drafts || !args.arrays.has_trees() || !row.verifies()) return;
  int32_t parent = i - 1;
  if (i > 0 && row.first_host_token >= 0) {
    parent = args.delta.host_parents[row.first_host_token + i - 1];
  } else if (i > 0 && i <= args.tree_size) {
    parent = args.tree[i - 1];
  }
  args.arrays.parents[token] = (parent < 0 || parent >= i) ? i - 1 : parent;
}

// Writes the arrays other than token_ids that drafters and verification read for a live row's i-th
// token.
REPRISE_HOST_DEVICE constexpr void WriteDraft(const RefillArgs& args, const StepRow& row, int i,
                                              int64_t token) {
  WriteParent(args, row, i, token);
  if (args.has_drafts && args.arrays.draft_logits != nullptr && row.verifies()) {
    args.arrays.draft_logits[token] = -1;
  }
}

// Stores the i-th token of a live row for drafters: in the slot's history, and at its cache
// position. `checked`: the same row in the form of the row builders.
REPRISE_HOST_DEVICE constexpr void WriteHistory(const RefillArgs& args, const RowArgs& row_args,
                                                const StepRow& row, const CheckedRow& checked,
                                                int i, int32_t token_id) {
  if (i >= NumVerified(row)) return;
  const TokenHistory& history = args.slots.history;
  const int64_t position = int64_t{checked.context_len} + i;
  if (history.tokens != nullptr && position < history.stride) {
    history.row(row.slot)[position] = token_id;
  }
  const PlaceTokens& places = args.place_tokens;
  if (places.tokens == nullptr) return;
  places.Keep(NewTokenSlot(row_args, checked, places.group, i), token_id);
}

// Updates the lengths of a live row's slot.
REPRISE_HOST_DEVICE constexpr void AdvanceSlot(const RefillArgs& args, const StepRow& row,
                                               int32_t context_len) {
  args.slots.seq_len[row.slot] = context_len + NumVerified(row);
  if (args.slots.drafted_len == nullptr || !args.runs_draft_model || row.verifies()) return;
  int32_t& drafted_len = args.slots.drafted_len[row.slot];
  if (drafted_len >= context_len) drafted_len = context_len + row.query_len;
}

// The delta's counts, clamped to the capacities, except that num_updates has no capacity.
struct RefillCounts {
  int num_leaves = 0;
  int num_joins = 0;
  int num_updates = 0;
  int num_rows = 0;
  int num_host_tokens = 0;
  int num_beyond = 0;  // leaves, joins and rows beyond the capacities
};

constexpr int ClampCount(int32_t count, int capacity) {
  return count < 0 ? 0 : (count < capacity ? count : capacity);
}

constexpr RefillCounts ClampCounts(const StepDeltaCounts& counts, const RefillArgs& args) {
  RefillCounts clamped;
  clamped.num_leaves = ClampCount(counts.num_leaves, args.slots.num_slots);
  clamped.num_joins = ClampCount(counts.num_joins, args.slots.num_slots);
  clamped.num_updates = counts.num_updates < 0 ? 0 : counts.num_updates;
  clamped.num_rows = ClampCount(counts.num_rows, args.padded_num_rows);
  clamped.num_host_tokens = ClampCount(counts.num_host_tokens, args.arrays.max_tokens);
  const auto beyond = [](int32_t count, int kept) { return count > kept ? count - kept : 0; };
  clamped.num_beyond = beyond(counts.num_leaves, clamped.num_leaves) +
                       beyond(counts.num_joins, clamped.num_joins) +
                       beyond(counts.num_rows, clamped.num_rows);
  return clamped;
}

// Writes the arrays that have one entry per step.
constexpr void WriteStepValues(const RefillArgs& args, int32_t common_prefix_len,
                               int32_t num_faults) {
  *args.arrays.common_prefix_len = common_prefix_len;
  *args.arrays.num_faults = num_faults;
  if (args.arrays.output != nullptr) *args.arrays.output = args.output;
}

constexpr int32_t CommonPrefixLenOf(const StepDeltaCounts& counts) {
  return counts.common_prefix_len > 0 ? counts.common_prefix_len : 0;
}

constexpr bool IsSlot(int32_t slot, const SlotState& slots) {
  return slot >= 0 && slot < slots.num_slots;
}

// Returns whether all positions of a sequence fit into int32.
constexpr bool IsValidPositionDelta(int32_t delta, int64_t limit) {
  return delta >= -limit && delta <= INT32_MAX - limit;
}

constexpr bool IsValidJoin(const StepJoin& join, const RefillArgs& args, const RowArgs& rows) {
  const int64_t limit = rows.context_limit;
  return IsValidPositionDelta(join.position_delta, limit) && IsSlot(join.slot, args.slots) &&
         join.seq_len >= 0 && join.seq_len <= limit && join.num_undrafted >= 0 &&
         join.num_undrafted <= join.seq_len && join.num_encoder_tokens >= 0 &&
         join.num_encoder_tokens <= limit;
}

constexpr bool IsValidUpdate(const StepUpdate& update, const RefillArgs& args) {
  return IsSlot(update.slot, args.slots) && update.column >= 0 &&
         update.column < args.slots.max_blocks && update.block >= 0 &&
         update.block < args.num_blocks && update.group >= 0 &&
         update.group < args.slots.num_groups;
}

// Returns whether the row's tokens exist: in host_tokens, or as the slot's last sampled token.
constexpr bool HasTokens(const StepRow& row, int num_host_tokens) {
  if (row.first_host_token == -1) return row.query_len == 1 || row.verifies();
  const int64_t num_given = row.verifies() ? int64_t{row.query_len} - 1 : row.query_len;
  return row.first_host_token >= 0 && row.first_host_token + num_given <= num_host_tokens;
}

constexpr bool HasModelPositions(const RefillArgs& args) {
  return args.arrays.num_position_dims > 1;
}

// Writes the positions, in all dimensions, of the `i`-th token of a live row, which is token
// `token` of the step. `delta`: the slot's position_delta. REQUIRES: HasModelPositions().
REPRISE_HOST_DEVICE constexpr void WriteModelPositions(const RefillArgs& args,
                                                       const StepDeltaCounts& counts,
                                                       const StepRow& row, int32_t context_len,
                                                       int32_t delta, int i, int64_t token) {
  const int64_t max_tokens = args.arrays.max_tokens;
  const bool is_given = counts.has_positions != 0 && row.first_host_token >= 0 && !row.verifies();
  for (int dim = 0; dim < args.arrays.num_position_dims; ++dim) {
    const int32_t given =
        is_given ? args.delta.host_positions[dim * max_tokens + row.first_host_token + i] : -1;
    args.arrays.model_positions[dim * max_tokens + token] =
        given >= 0 ? given : context_len + i + delta;
  }
}

// Writes the positions of an inert token. REQUIRES: HasModelPositions().
REPRISE_HOST_DEVICE constexpr void ClearModelPositions(const RefillArgs& args, int64_t token) {
  for (int dim = 0; dim < args.arrays.num_position_dims; ++dim) {
    args.arrays.model_positions[int64_t{dim} * args.arrays.max_tokens + token] = 0;
  }
}

// Checks a row of the step, except its blocks. `is_first`: no earlier row has its slot. `seq_len`:
// the slot's length before the step; only read if the slot is valid.
REPRISE_HOST_DEVICE constexpr CheckedRow CheckStepRow(const StepRow& row, bool is_first,
                                                      int32_t seq_len, int num_host_tokens,
                                                      const RowArgs& rows) {
  RowRequest request;
  request.is_padded = false;
  request.table_row = is_first ? row.slot : -1;
  request.context_len = seq_len;
  request.query_len = row.query_len;
  CheckedRow checked = CheckRow(rows, request);
  if (checked.fault != RowFault::kNone) return checked;
  if (row.query_len < 1) {
    checked.fault = RowFault::kLength;
  } else if (!HasTokens(row, num_host_tokens)) {
    checked.fault = RowFault::kToken;
  }
  return checked;
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_REFILL_ARGS_H_
