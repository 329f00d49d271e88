#include "runner/slot_mirror.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

// "rows: slot 3 ..., expected ..., got ...".
template <typename... Parts>
absl::Status Refusal(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status CheckSampling(int slot, const SamplingParams& sampling) {
  if (!(sampling.temperature >= 0.0f)) {
    return Refusal("joins: temperature of slot ", slot, " must be at least 0, got ",
                   sampling.temperature);
  }
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f)) {
    return Refusal("joins: top_p of slot ", slot, " must be in (0, 1], got ", sampling.top_p);
  }
  if (sampling.top_k < 0) {
    return Refusal("joins: top_k of slot ", slot, " must be at least 0, got ", sampling.top_k);
  }
  return absl::OkStatus();
}

}  // namespace

SlotMirror::SlotMirror(const SlotLimits& limits)
    : limits_(limits), slots_(limits.num_slots), before_(limits.num_slots) {}

absl::StatusOr<StepDemand> SlotMirror::Advance(const ScheduledBatch& batch) {
  before_ = slots_;
  StepDemand demand;
  const absl::Status status = [&] {
    for (const SlotId slot : batch.leaves) {
      REPRISE_RETURN_IF_ERROR(CheckSlot("leaves", slot.value()));
      slots_[slot.value()] = {};
    }
    for (const SlotJoin& join : batch.joins) REPRISE_RETURN_IF_ERROR(ApplyJoin(join));
    for (const BlockTableUpdate& update : batch.updates)
      REPRISE_RETURN_IF_ERROR(ApplyUpdate(update));
    for (Slot& slot : slots_) slot.has_row = false;
    for (const ScheduledRow& row : batch.rows) REPRISE_RETURN_IF_ERROR(ApplyRow(row, demand));
    return absl::OkStatus();
  }();
  if (!status.ok()) {
    std::swap(slots_, before_);
    return status;
  }
  return demand;
}

absl::Status SlotMirror::CheckSlot(const char* part, int slot) const {
  if (slot >= 0 && slot < limits_.num_slots) return absl::OkStatus();
  return Refusal(part, ": slot must be in [0, ", limits_.num_slots, "), got ", slot);
}

absl::Status SlotMirror::ApplyJoin(const SlotJoin& join) {
  REPRISE_RETURN_IF_ERROR(CheckSlot("joins", join.slot));
  if (slots_[join.slot].joined) {
    return Refusal("joins: slot ", join.slot, " is taken, and did not leave");
  }
  if (join.seq_len < 0 || join.seq_len > limits_.max_seq_len) {
    return Refusal("joins: seq_len of slot ", join.slot, " must be in [0, ", limits_.max_seq_len,
                   "], got ", join.seq_len);
  }
  REPRISE_RETURN_IF_ERROR(CheckSampling(join.slot, join.sampling));
  slots_[join.slot] = {.joined = true, .seq_len = join.seq_len, .sampling = join.sampling};
  return absl::OkStatus();
}

absl::Status SlotMirror::ApplyUpdate(const BlockTableUpdate& update) {
  REPRISE_RETURN_IF_ERROR(CheckSlot("updates", update.slot));
  Slot& slot = slots_[update.slot];
  if (!slot.joined) return Refusal("updates: slot ", update.slot, " has no sequence");
  const int most = std::min(slot.num_columns, limits_.max_blocks - 1);
  if (update.column < 0 || update.column > most) {
    return Refusal("updates: column of slot ", update.slot, " must be in [0, ", most,
                   "], the next free one at most, got ", update.column);
  }
  if (update.block < 1 || update.block >= limits_.num_blocks) {
    return Refusal("updates: block of slot ", update.slot, " must be in [1, ", limits_.num_blocks,
                   "), got ", update.block);
  }
  slot.num_columns = std::max(slot.num_columns, update.column + 1);
  return absl::OkStatus();
}

absl::Status SlotMirror::ApplyRow(const ScheduledRow& row, StepDemand& demand) {
  const int id = row.slot.value();
  REPRISE_RETURN_IF_ERROR(CheckSlot("rows", id));
  Slot& slot = slots_[id];
  if (!slot.joined) return Refusal("rows: slot ", id, " has no sequence");
  if (slot.has_row) return Refusal("rows: slot ", id, " occurs twice");
  if (row.tokens.empty() && !slot.has_token) {
    return Refusal("rows: slot ", id, " has no last token yet, so the row must bring tokens");
  }
  for (const int32_t token : row.tokens) {
    if (token < 0 || token >= limits_.vocab_size) {
      return Refusal("rows: token of slot ", id, " must be in [0, ", limits_.vocab_size, "), got ",
                     token);
    }
  }
  slot.has_row = true;
  slot.has_token |= row.output == RowOutput::kToken;
  const int64_t seq_len = int64_t{slot.seq_len} + row.query_len();
  if (seq_len > limits_.max_seq_len) {
    return Refusal("rows: slot ", id, " would be longer than max_seq_len: expected at most ",
                   limits_.max_seq_len, " tokens, got ", seq_len);
  }
  if (seq_len > int64_t{slot.num_columns} * limits_.block_size) {
    return Refusal("rows: slot ", id, " has too few blocks: expected room for ", seq_len,
                   " tokens, got ", slot.num_columns, " blocks of ", limits_.block_size);
  }
  slot.seq_len = static_cast<int>(seq_len);
  StepShape& shape = demand.shape;
  shape.num_seqs += 1;
  shape.num_tokens += row.query_len();
  shape.max_query_len = std::max(shape.max_query_len, row.query_len());
  shape.max_seq_len = std::max(shape.max_seq_len, slot.seq_len);
  if (shape.num_tokens > limits_.max_num_tokens) {
    return Refusal("rows: a step has at most max_num_tokens tokens: expected at most ",
                   limits_.max_num_tokens, ", got ", shape.num_tokens, " or more");
  }
  if (slot.sampling.temperature > 0.0f && row.output == RowOutput::kToken) {
    demand.features = SamplingFeatures::kGeneral;
  }
  return absl::OkStatus();
}

}  // namespace reprise
