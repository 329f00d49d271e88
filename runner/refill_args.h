// What refill works on (runner/refill.h), and its rules for a single entry: shared by the CPU's and
// the GPU's form. No LibTorch; everything constexpr, so that nvcc compiles it for the device.

#ifndef RUNNER_REFILL_ARGS_H_
#define RUNNER_REFILL_ARGS_H_

#include <cstdint>

#include "cache/block_table_update.h"
#include "cache/kv_group.h"
#include "runner/slot_state.h"
#include "runner/step_arrays.h"
#include "runner/step_delta.h"

namespace reprise {

struct RefillArgs {
  StepDelta delta;
  SlotState slots;
  StepArrays arrays;
  int padded_num_rows = 0;    // rows that the step's graph has; >= delta rows
  int padded_num_tokens = 0;  // >= delta tokens
  int block_size = 0;
  int num_blocks = 0;
  KvGroupSpec groups[kMaxKvGroups] = {};  // the first slots.num_groups
};

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

// Tokens that a table row has room for, and that a position can count.
constexpr int64_t MaxSeqLen(const RefillArgs& args) {
  const int64_t room = static_cast<int64_t>(args.slots.max_blocks) * args.block_size;
  return room < INT32_MAX ? room : INT32_MAX;
}

constexpr bool IsValidJoin(const SlotJoin& join, const RefillArgs& args) {
  return IsSlot(join.slot, args.slots) && join.seq_len >= 0 && join.seq_len <= MaxSeqLen(args) &&
         join.num_encoder_tokens >= 0 && join.num_encoder_tokens <= MaxSeqLen(args);
}

constexpr bool IsValidUpdate(const BlockTableUpdate& update, const RefillArgs& args) {
  return IsSlot(update.slot, args.slots) && update.column >= 0 &&
         update.column < args.slots.max_blocks && update.block >= 0 &&
         update.block < args.num_blocks && update.group >= 0 &&
         update.group < args.slots.num_groups;
}

// Whether a row's tokens can be found and its positions fit into the table. REQUIRES: its slot is
// one, and `seq_len` is the slot's before the step.
constexpr bool IsValidRow(const StepRow& row, int32_t seq_len, int num_host_tokens,
                          const RefillArgs& args) {
  if (row.query_len < 1 || row.query_len > args.padded_num_tokens) return false;
  if (seq_len < 0 || static_cast<int64_t>(seq_len) + row.query_len > MaxSeqLen(args)) return false;
  if (row.first_host_token == -1) return row.query_len == 1;
  return row.first_host_token >= 0 &&
         static_cast<int64_t>(row.first_host_token) + row.query_len <= num_host_tokens;
}

constexpr bool IsWritableBlock(int32_t block, const RefillArgs& args) {
  return block >= 1 && block < args.num_blocks;
}

// Whether the row's own tokens are written into the group: not into the encoder's keys.
constexpr bool IsWrittenByRows(const KvGroupSpec& group) {
  return group.retention != KvRetention::kCross;
}

// Whether a row that ends before position `end` can be served with `block` in a column that it
// reaches: it can be written, or it is null and its tokens are older than what the row's last query
// sees.
constexpr bool IsServableBlock(int32_t block, int column, int64_t end, const KvGroupSpec& group,
                               const RefillArgs& args) {
  if (IsWritableBlock(block, args)) return true;
  const int64_t column_end = (static_cast<int64_t>(column) + 1) * args.block_size;
  return block == 0 && (column_end < end ? column_end : end) <= FirstNeededPosition(group, end - 1);
}

// Where a token at `position` is written, given the block of its column.
constexpr int64_t SlotOf(int32_t block, int32_t position, const RefillArgs& args) {
  if (block == 0) return -1;
  return static_cast<int64_t>(block) * args.block_size + position % args.block_size;
}

}  // namespace reprise

#endif  // RUNNER_REFILL_ARGS_H_
