#include "reprise/runner/slots/refill.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// Runs one refill sequentially. Functions must be called in the order of the delta.
class Refill {
 public:
  explicit Refill(const RefillArgs& args)
      : args_(args),
        slots_(args.slots),
        arrays_(args.arrays),
        rows_(RefillRowArgs(args)),
        counts_(ClampCounts(*args.delta.counts, args)),
        num_faults_(counts_.num_beyond) {}

  void ApplyLeaves() {
    for (int i = 0; i < counts_.num_leaves; ++i) {
      const int32_t slot = args_.delta.leaves[i];
      if (!IsSlot(slot, slots_)) {
        ++num_faults_;
        continue;
      }
      slots_.seq_len[slot] = 0;
      slots_.encoder_len[slot] = 0;
      if (HasModelPositions(args_)) slots_.position_delta[slot] = 0;
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
      const StepJoin& join = args_.delta.joins[i];
      if (!IsValidJoin(join, args_, rows_)) {
        ++num_faults_;
        continue;
      }
      slots_.seq_len[join.slot] = join.seq_len;
      slots_.encoder_len[join.slot] = join.num_encoder_tokens;
      if (HasModelPositions(args_)) slots_.position_delta[join.slot] = join.position_delta;
      slots_.last_token[join.slot] = 0;
      slots_.sample_index[join.slot] = join.sample_index;
      slots_.sampling[join.slot] = join.sampling;
      if (slots_.history.tokens != nullptr) {
        std::fill_n(slots_.history.row(join.slot),
                    std::min<int64_t>(join.seq_len, slots_.history.stride), -1);
      }
      if (slots_.drafted_len != nullptr) {
        slots_.drafted_len[join.slot] = join.seq_len - join.num_undrafted;
      }
    }
  }

  void ApplyUpdates() {
    for (int i = 0; i < counts_.num_updates; ++i) {
      const StepUpdate& update = args_.delta.updates[i];
      if (!IsValidUpdate(update, args_)) {
        ++num_faults_;
        continue;
      }
      slots_.table_row(update.group, update.slot)[update.column] = update.block;
    }
  }

  void ClearEarlierLogits() {
    for (int i = 0; i < args_.padded_num_earlier_logits; ++i) {
      WriteEarlierLogits(args_, i, 0, {}, {});
    }
  }

  void GatherRows() {
    // Reused by all steps to avoid an allocation per step.
    static thread_local std::vector<char> taken;
    taken.assign(slots_.num_slots, false);
    const RowCounts counts = WriteRowsInOrder(
        rows_, [&](int r) { return RowAt(r, taken); },
        [&](int r, const CheckedRow& checked, int i) {
          const StepRow& row = args_.delta.rows[r];
          const int32_t id = TokenIdOf(args_, row, slots_.last_token[row.slot], i);
          WriteHistory(args_, rows_, row, checked, i, id);
          return id;
        },
        [&](int r, const CheckedRow& row) { FinishRow(r, row); });
    for (int token = counts.num_tokens; HasModelPositions(args_) && token < args_.padded_num_tokens;
         ++token) {
      ClearModelPositions(args_, token);
    }
    WriteStepValues(args_, CommonPrefixLenOf(*args_.delta.counts), num_faults_ + counts.num_faults);
  }

 private:
  // Checks row r. Marks its slot as taken, even if the row is faulty.
  CheckedRow RowAt(int r, std::vector<char>& taken) {
    if (r >= counts_.num_rows) return {};
    const StepRow& step_row = args_.delta.rows[r];
    bool is_first = false;
    int32_t seq_len = 0;
    if (IsSlot(step_row.slot, slots_)) {
      is_first = !taken[step_row.slot];
      taken[step_row.slot] = true;
      seq_len = slots_.seq_len[step_row.slot];
    }
    CheckedRow row = CheckStepRow(step_row, is_first, seq_len, counts_.num_host_tokens, rows_);
    if (row.is_live() && !HasBlocks(SerialLanes(), rows_, row)) row.fault = RowFault::kNoBlock;
    if (args_.has_scored_rows && row.is_live()) PlaceEarlierLogits(r, row);
    return row;
  }

  // Assigns indices among the step's earlier tokens to the row's earlier tokens.
  void PlaceEarlierLogits(int r, CheckedRow& row) {
    const int count = NumEarlierLogits(row.query_len, args_.delta.scores[r]);
    first_earlier_ = count > 0 ? num_earlier_ : -1;
    num_earlier_ += count;
    if (count > 0 && num_earlier_ > args_.padded_num_earlier_logits) row.fault = RowFault::kNoRoom;
  }

  void WriteScores(int r, const CheckedRow& row) {
    if (!row.is_live()) return WriteScoredToken(arrays_, r, {});
    const StepRowScore& score = args_.delta.scores[r];
    WriteScoredToken(arrays_, r, ScoredByLast(args_.delta.rows[r], score));
    const int32_t first_token = arrays_.query_start_loc[r];
    for (int i = 0; i < NumEarlierLogits(row.query_len, score); ++i) {
      const int32_t token = first_token + i;
      WriteEarlierLogitsOf(args_, args_.delta.rows[r], i, first_earlier_ + i, token,
                           arrays_.token_ids[token + 1]);
    }
  }

  // Writes the positions of a live row's tokens as the model reads them.
  void WritePositions(int r, const CheckedRow& row) {
    for (int i = 0; i < row.query_len; ++i) {
      WriteModelPositions(args_, *args_.delta.counts, args_.delta.rows[r], row.context_len,
                          slots_.position_delta[row.table_row], i, arrays_.query_start_loc[r] + i);
    }
  }

  // Writes the arrays that only refill writes, not all row builders.
  void FinishRow(int r, const CheckedRow& row) {
    arrays_.encoder_lens[r] = row.is_live() ? slots_.encoder_len[row.table_row] : 0;
    arrays_.sample_slot[r] = row.is_live() && args_.delta.rows[r].samples != 0 ? row.table_row : -1;
    if (row.is_live()) {
      AdvanceSlot(args_, args_.delta.rows[r], row.context_len);
      if (HasModelPositions(args_)) WritePositions(r, row);
      for (int i = 0; i < row.query_len; ++i) {
        WriteDraft(args_, args_.delta.rows[r], i, int64_t{arrays_.query_start_loc[r]} + i);
      }
    }
    if (args_.has_drafts) {
      WriteVerifiedRow(args_, r, row.is_live() ? args_.delta.rows[r] : StepRow(), row.is_live(),
                       static_cast<int>(first_earlier_));
    }
    if (args_.has_scored_rows) WriteScores(r, row);
  }

  const RefillArgs& args_;
  const SlotState& slots_;
  const StepArrays& arrays_;
  const RowArgs rows_;
  const RefillCounts counts_;
  int32_t num_faults_ = 0;
  int64_t num_earlier_ = 0;    // earlier tokens of the rows so far
  int64_t first_earlier_ = 0;  // index of the newest row's first earlier token; -1: none
};

}  // namespace

absl::Status CheckRefill(const RefillArgs& args) {
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("padded_num_rows", args.padded_num_rows, 0, args.arrays.max_rows));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("padded_num_tokens", args.padded_num_tokens, 0, args.arrays.max_tokens));
  REPRISE_RETURN_IF_ERROR(CheckBetween("padded_num_earlier_logits", args.padded_num_earlier_logits,
                                       0,
                                       args.has_scored_rows ? args.arrays.max_earlier_logits : 0));
  if (args.has_scored_rows) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("delta.scores", args.delta.scores));
    REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.scored_slot", args.arrays.scored_slot));
    REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.scored_token", args.arrays.scored_token));
  }
  if (args.has_drafts) {
    if (!args.has_scored_rows) {
      return absl::InvalidArgumentError(
          "has_drafts requires has_scored_rows: expected true, got false");
    }
    REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.sample_offset", args.arrays.sample_offset));
    REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.first_verified", args.arrays.first_verified));
    REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.num_proposed", args.arrays.num_proposed));
    if (args.arrays.has_trees()) {
      REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.parents", args.arrays.parents));
      REPRISE_RETURN_IF_ERROR(CheckGiven("delta.host_parents", args.delta.host_parents));
    }
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("block_size", args.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_groups", args.slots.num_groups, 1, kMaxKvGroups));
  if (args.place_tokens.tokens != nullptr) {
    REPRISE_RETURN_IF_ERROR(
        CheckBetween("place_tokens.group", args.place_tokens.group, 0, args.slots.num_groups - 1));
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_position_dims", args.arrays.num_position_dims, 1));
  if (!HasModelPositions(args)) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.model_positions", args.arrays.model_positions));
  REPRISE_RETURN_IF_ERROR(CheckGiven("delta.host_positions", args.delta.host_positions));
  return CheckGiven("slots.position_delta", args.slots.position_delta);
}

void RefillOnHost(const RefillArgs& args) {
  CHECK_EQ(CheckRefill(args), absl::OkStatus());
  Refill refill(args);
  refill.ApplyLeaves();
  refill.ApplyJoins();
  refill.ApplyUpdates();
  refill.ClearEarlierLogits();
  refill.GatherRows();
}

}  // namespace reprise
