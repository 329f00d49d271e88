#include "runner/refill.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace reprise {
namespace {

// One refill, sequentially. The order of calls is that of the delta.
class Refill {
 public:
  explicit Refill(const RefillArgs& args)
      : args_(args),
        slots_(args.slots),
        arrays_(args.arrays),
        counts_(ClampCounts(*args.delta.counts, args)),
        num_bad_(counts_.num_beyond) {}

  void ApplyLeaves() {
    for (int i = 0; i < counts_.num_leaves; ++i) {
      const int32_t slot = args_.delta.leaves[i];
      if (!IsSlot(slot, slots_)) {
        ++num_bad_;
        continue;
      }
      slots_.seq_len[slot] = 0;
      slots_.last_token[slot] = 0;
      slots_.sample_index[slot] = 0;
      slots_.sampling[slot] = {};
      std::fill_n(TableRow(slot), slots_.max_blocks, 0);
    }
  }

  void ApplyJoins() {
    for (int i = 0; i < counts_.num_joins; ++i) {
      const SlotJoin& join = args_.delta.joins[i];
      if (!IsValidJoin(join, args_)) {
        ++num_bad_;
        continue;
      }
      slots_.seq_len[join.slot] = join.seq_len;
      slots_.last_token[join.slot] = 0;
      slots_.sample_index[join.slot] = join.sample_index;
      slots_.sampling[join.slot] = join.sampling;
    }
  }

  void ApplyUpdates() {
    for (int i = 0; i < counts_.num_updates; ++i) {
      const BlockTableUpdate& update = args_.delta.updates[i];
      if (!IsValidUpdate(update, args_)) {
        ++num_bad_;
        continue;
      }
      TableRow(update.slot)[update.column] = update.block;
    }
  }

  void GatherRows() {
    // Kept from step to step: a step allocates nothing.
    static thread_local std::vector<char> taken;
    taken.assign(slots_.num_slots, false);
    bool is_full = false;
    arrays_.query_start_loc[0] = 0;
    for (int r = 0; r < args_.padded_num_rows; ++r) {
      bool good = false;
      if (r < counts_.num_rows) {
        const StepRow& row = args_.delta.rows[r];
        good = IsServable(row, taken);
        if (good && int64_t{num_tokens_} + row.query_len > args_.padded_num_tokens) is_full = true;
        good = good && !is_full;
        num_bad_ += !good;
        if (good) ServeRow(r, row);
      }
      if (!good) PadRow(r);
      arrays_.query_start_loc[r + 1] = num_tokens_;
    }
    for (int t = num_tokens_; t < args_.padded_num_tokens; ++t) {
      arrays_.token_ids[t] = 0;
      arrays_.positions[t] = 0;
      arrays_.slot_mapping[t] = -1;
    }
    *arrays_.num_bad_rows = num_bad_;
  }

 private:
  int32_t* TableRow(int32_t slot) const {
    return slots_.block_table + slot * slots_.block_table_stride;
  }

  // All but whether it fits. Marks the slot as taken.
  bool IsServable(const StepRow& row, std::vector<char>& taken) const {
    if (!IsSlot(row.slot, slots_) || taken[row.slot]) return false;
    taken[row.slot] = true;
    const int32_t seq_len = slots_.seq_len[row.slot];
    if (!IsValidRow(row, seq_len, counts_.num_host_tokens, args_)) return false;
    const int32_t* table_row = TableRow(row.slot);
    return std::all_of(table_row + seq_len / args_.block_size,
                       table_row + (seq_len + row.query_len - 1) / args_.block_size + 1,
                       [&](int32_t block) { return IsWritableBlock(block, args_); });
  }

  void ServeRow(int r, const StepRow& row) {
    const int32_t seq_len = slots_.seq_len[row.slot];
    const int32_t* table_row = TableRow(row.slot);
    for (int i = 0; i < row.query_len; ++i, ++num_tokens_) {
      const int32_t position = seq_len + i;
      arrays_.token_ids[num_tokens_] = row.first_host_token < 0
                                           ? slots_.last_token[row.slot]
                                           : args_.delta.host_tokens[row.first_host_token + i];
      arrays_.positions[num_tokens_] = position;
      arrays_.slot_mapping[num_tokens_] =
          int64_t{table_row[position / args_.block_size]} * args_.block_size +
          position % args_.block_size;
    }
    slots_.seq_len[row.slot] = seq_len + row.query_len;
    arrays_.seq_lens[r] = seq_len + row.query_len;
    arrays_.table_row[r] = row.slot;
    arrays_.logits_indices[r] = num_tokens_ - 1;
    arrays_.sample_slot[r] = row.samples != 0 ? row.slot : -1;
  }

  void PadRow(int r) {
    arrays_.seq_lens[r] = 0;
    arrays_.table_row[r] = 0;
    arrays_.logits_indices[r] = 0;
    arrays_.sample_slot[r] = -1;
  }

  const RefillArgs& args_;
  const SlotState& slots_;
  const StepArrays& arrays_;
  const RefillCounts counts_;
  int32_t num_bad_ = 0;
  int32_t num_tokens_ = 0;
};

}  // namespace

void RefillOnHost(const RefillArgs& args) {
  CHECK_LE(args.padded_num_rows, args.arrays.max_rows);
  CHECK_LE(args.padded_num_tokens, args.arrays.max_tokens);
  CHECK_GE(args.block_size, 1);
  Refill refill(args);
  refill.ApplyLeaves();
  refill.ApplyJoins();
  refill.ApplyUpdates();
  refill.GatherRows();
}

}  // namespace reprise
