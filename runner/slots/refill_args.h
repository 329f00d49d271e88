// The arguments of refill (runner/slots/refill.h), and its rules for a single entry, shared by the
// CPU and GPU implementations. No LibTorch; everything constexpr, so that nvcc compiles it for the
// device.

#ifndef RUNNER_SLOTS_REFILL_ARGS_H_
#define RUNNER_SLOTS_REFILL_ARGS_H_

#include <cstdint>

#include "attention/metadata/batch_rows.h"
#include "cache/kv_group.h"
#include "cache/tables/block_table_view.h"
#include "runner/slots/slot_state.h"
#include "runner/slots/step_arrays.h"
#include "runner/slots/step_delta.h"

namespace reprise {

struct RefillArgs {
  StepDelta delta;
  SlotState slots;
  StepArrays arrays;
  int padded_num_rows = 0;    // rows that the step's graph has; >= delta rows
  int padded_num_tokens = 0;  // >= delta tokens
  // Entries of logits_indices after those of the padded rows; above 0 only with has_scored_rows.
  int padded_num_earlier_logits = 0;
  // Whether delta.scores is read, and scored_slot and scored_token are written.
  bool has_scored_rows = false;
  int block_size = 0;
  int num_blocks = 0;
  KvGroupSpec groups[kMaxKvGroups] = {};  // the first slots.num_groups
};

// The rows of a step as all builders of rows see them (attention/metadata/batch_rows.h): a slot is
// a table row, in every group, and its seq_len the row's context.
constexpr RowArgs RefillRowArgs(const RefillArgs& args) {
  RowArgs rows;
  rows.table.entries = args.slots.block_table;
  rows.table.row_stride = args.slots.block_table_stride;
  rows.table.num_tables = args.slots.num_slots;
  rows.table.max_blocks = args.slots.max_blocks;
  rows.table.block_size = args.block_size;
  rows.table.num_blocks = args.num_blocks;
  rows.group_stride = args.slots.block_table_group_stride;
  rows.num_groups = args.slots.num_groups;
  for (int group = 0; group < kMaxKvGroups; ++group) rows.groups[group] = args.groups[group];
  rows.num_rows = args.padded_num_rows;
  rows.num_tokens = args.padded_num_tokens;
  rows.max_query_len = args.padded_num_tokens;
  rows.arrays.token_ids = args.arrays.token_ids;
  rows.arrays.positions = args.arrays.positions;
  rows.arrays.slot_mapping = args.arrays.slot_mapping;
  rows.arrays.group_stride = args.arrays.max_tokens;
  rows.arrays.query_start_loc = args.arrays.query_start_loc;
  rows.arrays.seq_lens = args.arrays.seq_lens;
  rows.arrays.context_lens = args.arrays.context_lens;
  rows.arrays.table_row = args.arrays.table_row;
  rows.arrays.logits_indices = args.arrays.logits_indices;
  rows.arrays.row_faults = args.arrays.row_faults;
  return PrepareRows(rows);
}

// A known token whose log-probability a row of logits may give, and whose it is. -1, -1: none.
struct ScoredToken {
  int32_t slot = -1;
  int32_t token = -1;
};

constexpr void WriteScoredToken(const StepArrays& arrays, int64_t logits_row,
                                const ScoredToken& scored) {
  arrays.scored_slot[logits_row] = scored.slot;
  arrays.scored_token[logits_row] = scored.token;
}

// Of the last logits of a live row.
constexpr ScoredToken ScoredByLast(const StepRow& row, const StepRowScore& score) {
  if (row.samples != 0 || score.next_token < 0) return {};
  return {row.slot, score.next_token};
}

// The tokens of a live row before its last whose logits are wanted.
constexpr int NumEarlierLogits(int query_len, const StepRowScore& score) {
  return score.all_logits != 0 ? query_len - 1 : 0;
}

// The i-th earlier token of the step is `token` of the batch; {0, {}} for padding.
constexpr void WriteEarlierLogits(const RefillArgs& args, int64_t i, int32_t token,
                                  const ScoredToken& scored) {
  const int64_t logits_row = args.padded_num_rows + i;
  args.arrays.logits_indices[logits_row] = token;
  WriteScoredToken(args.arrays, logits_row, scored);
}

// The delta's counts, clamped to what may be read.
struct RefillCounts {
  int num_leaves = 0;
  int num_joins = 0;
  int num_updates = 0;
  int num_rows = 0;
  int num_host_tokens = 0;
  int num_beyond = 0;  // leaves, joins and rows beyond capacity
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

constexpr int32_t CommonPrefixLenOf(const StepDeltaCounts& counts) {
  return counts.common_prefix_len > 0 ? counts.common_prefix_len : 0;
}

constexpr bool IsSlot(int32_t slot, const SlotState& slots) {
  return slot >= 0 && slot < slots.num_slots;
}

constexpr bool IsValidJoin(const SlotJoin& join, const RefillArgs& args, const RowArgs& rows) {
  const int64_t limit = rows.context_limit;
  return IsSlot(join.slot, args.slots) && join.seq_len >= 0 && join.seq_len <= limit &&
         join.num_encoder_tokens >= 0 && join.num_encoder_tokens <= limit;
}

constexpr bool IsValidUpdate(const BlockTableUpdate& update, const RefillArgs& args) {
  return IsSlot(update.slot, args.slots) && update.column >= 0 &&
         update.column < args.slots.max_blocks && update.block >= 0 &&
         update.block < args.num_blocks && update.group >= 0 &&
         update.group < args.slots.num_groups;
}

// Whether the delta has the row's tokens: in host_tokens, or one that the slot's last sample left.
constexpr bool HasTokens(const StepRow& row, int num_host_tokens) {
  if (row.first_host_token == -1) return row.query_len == 1;
  return row.first_host_token >= 0 &&
         static_cast<int64_t>(row.first_host_token) + row.query_len <= num_host_tokens;
}

// A row of the step, all but its blocks. `is_first`: no earlier row has its slot. `seq_len`: the
// slot's before the step, read only if the slot is one.
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

#endif  // RUNNER_SLOTS_REFILL_ARGS_H_
