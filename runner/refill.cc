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
      slots_.encoder_len[slot] = 0;
      slots_.last_token[slot] = 0;
      slots_.sample_index[slot] = 0;
      slots_.sampling[slot] = {};
      for (int g = 0; g < slots_.num_groups; ++g) {
        std::fill_n(slots_.table_row(g, slot), slots_.max_blocks, 0);
      }
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
      slots_.encoder_len[join.slot] = join.num_encoder_tokens;
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
      slots_.table_row(update.group, update.slot)[update.column] = update.block;
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
      for (int g = 0; g < slots_.num_groups; ++g) arrays_.group_slots(g)[t] = -1;
    }
    *arrays_.common_prefix_len = CommonPrefixLenOf(*args_.delta.counts);
    *arrays_.num_bad_rows = num_bad_;
  }

 private:
  // All but whether it fits. Marks the slot as taken.
  bool IsServable(const StepRow& row, std::vector<char>& taken) const {
    if (!IsSlot(row.slot, slots_) || taken[row.slot]) return false;
    taken[row.slot] = true;
    const int32_t seq_len = slots_.seq_len[row.slot];
    if (!IsValidRow(row, seq_len, counts_.num_host_tokens, args_)) return false;
    for (int g = 0; g < slots_.num_groups; ++g) {
      if (IsWrittenByRows(args_.groups[g]) && !HasBlocks(row, seq_len, g)) return false;
    }
    return true;
  }

  bool HasBlocks(const StepRow& row, int32_t seq_len, int group) const {
    const int32_t* table_row = slots_.table_row(group, row.slot);
    const int64_t end = int64_t{seq_len} + row.query_len;
    for (int c = seq_len / args_.block_size; int64_t{c} * args_.block_size < end; ++c) {
      if (!IsServableBlock(table_row[c], c, end, args_.groups[group], args_)) return false;
    }
    return true;
  }

  void ServeRow(int r, const StepRow& row) {
    const int32_t seq_len = slots_.seq_len[row.slot];
    for (int i = 0; i < row.query_len; ++i, ++num_tokens_) {
      const int32_t position = seq_len + i;
      arrays_.token_ids[num_tokens_] = row.first_host_token < 0
                                           ? slots_.last_token[row.slot]
                                           : args_.delta.host_tokens[row.first_host_token + i];
      arrays_.positions[num_tokens_] = position;
      for (int g = 0; g < slots_.num_groups; ++g) {
        const int32_t block = slots_.table_row(g, row.slot)[position / args_.block_size];
        arrays_.group_slots(g)[num_tokens_] =
            IsWrittenByRows(args_.groups[g]) ? SlotOf(block, position, args_) : -1;
      }
    }
    slots_.seq_len[row.slot] = seq_len + row.query_len;
    arrays_.seq_lens[r] = seq_len + row.query_len;
    arrays_.context_lens[r] = seq_len;
    arrays_.encoder_lens[r] = slots_.encoder_len[row.slot];
    arrays_.table_row[r] = row.slot;
    arrays_.logits_indices[r] = num_tokens_ - 1;
    arrays_.sample_slot[r] = row.samples != 0 ? row.slot : -1;
  }

  void PadRow(int r) {
    arrays_.seq_lens[r] = 0;
    arrays_.context_lens[r] = 0;
    arrays_.encoder_lens[r] = 0;
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
  CHECK_GE(args.slots.num_groups, 1);
  CHECK_LE(args.slots.num_groups, kMaxKvGroups);
  Refill refill(args);
  refill.ApplyLeaves();
  refill.ApplyJoins();
  refill.ApplyUpdates();
  refill.GatherRows();
}

}  // namespace reprise
