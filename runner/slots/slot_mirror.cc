#include "reprise/runner/slots/slot_mirror.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/group_retention.h"
#include "reprise/runner/sampling/sampling_check.h"

namespace reprise {
namespace {

// Returns InvalidArgument. Example: "rows: slot 3 ..., expected ..., got ...".
template <typename... Parts>
absl::Status Refusal(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status CheckCount(const char* part, size_t count, int64_t most) {
  if (count <= static_cast<size_t>(most)) return absl::OkStatus();
  return Refusal(part, ": a batch has at most ", most, ", got ", count);
}

}  // namespace

SlotMirror::SlotMirror(const RunnerShape& shape)
    : shape_(shape),
      state_{.slots = std::vector<Slot>(shape.max_num_seqs),
             .columns = std::vector<Columns>(shape.max_num_seqs * shape.groups.size())},
      before_(state_) {
  unsettled_rows_.reserve(shape.max_num_seqs);
}

absl::StatusOr<StepDemand> SlotMirror::Advance(const ScheduledBatch& batch) {
  before_ = state_;
  StepDemand demand;
  const absl::Status status = [&] {
    // The capacities of the delta that carries the batch. Other parts have their own limits.
    REPRISE_RETURN_IF_ERROR(CheckCount("leaves", batch.leaves.size(), shape_.max_num_seqs));
    REPRISE_RETURN_IF_ERROR(CheckCount("updates", batch.updates.size(), shape_.max_updates()));
    for (const SlotId slot : batch.leaves) {
      REPRISE_RETURN_IF_ERROR(CheckSlot("leaves", slot.value()));
      state_.slots[slot.value()] = {};
      for (int group = 0; group < num_groups(); ++group) columns(slot.value(), group) = {};
    }
    for (const SlotJoin& join : batch.joins) REPRISE_RETURN_IF_ERROR(ApplyJoin(join));
    for (const BlockTableUpdate& update : batch.updates) {
      REPRISE_RETURN_IF_ERROR(ApplyUpdate(update));
    }
    const int num_blocks = shape_.num_blocks;
    const int num_swap_blocks = shape_.num_swap_blocks;
    REPRISE_RETURN_IF_ERROR(CheckCopies("swap_outs", batch.swap_outs, num_blocks, num_swap_blocks));
    REPRISE_RETURN_IF_ERROR(CheckCopies("swap_ins", batch.swap_ins, num_swap_blocks, num_blocks));
    REPRISE_RETURN_IF_ERROR(CheckCopies("copies", batch.copies, num_blocks, num_blocks));
    for (const ScheduledEncode& encode : batch.encodes) {
      REPRISE_RETURN_IF_ERROR(ApplyEncode(encode, demand));
    }
    for (Slot& slot : state_.slots) slot.has_row = false;
    unsettled_rows_.clear();
    for (size_t r = 0; r < batch.rows.size(); ++r) {
      const ScheduledRow& row = batch.rows[r];
      REPRISE_RETURN_IF_ERROR(ApplyRow(row, demand));
      if (row.draft_count() == 0) continue;
      unsettled_rows_.push_back({.row = static_cast<int>(r),
                                 .slot = row.slot,
                                 .sequence = state_.slots[row.slot.value()].sequence,
                                 .num_drafts = row.draft_count()});
    }
    if (batch.embeddings.empty()) return absl::OkStatus();
    demand.shape.input = StepInput::kEmbeddings;
    return CheckEmbeddings(batch);
  }();
  if (!status.ok()) {
    std::swap(state_, before_);
    return status;
  }
  return demand;
}

absl::Status SlotMirror::CheckSlot(const char* part, int slot) const {
  if (slot >= 0 && slot < shape_.max_num_seqs) return absl::OkStatus();
  return Refusal(part, ": slot must be in [0, ", shape_.max_num_seqs, "), got ", slot);
}

absl::Status SlotMirror::ApplyJoin(const SlotJoin& join) {
  const int id = join.slot.value();
  REPRISE_RETURN_IF_ERROR(CheckSlot("joins", id));
  Slot& slot = state_.slots[id];
  if (slot.joined) return Refusal("joins: slot ", id, " is taken, and did not leave");
  if (join.seq_len == SlotJoin::kNotStated) {
    return Refusal("joins: seq_len of slot ", id, " must be stated: expected the number of ",
                   "tokens whose keys are cached, such as PromptHits::num_tokens, or 0");
  }
  if (join.prompt_len == SlotJoin::kNotStated) {
    return Refusal("joins: prompt_len of slot ", id, " must be stated: expected the number ",
                   "of tokens of its prompt, including the tokens of seq_len");
  }
  if (join.seq_len < 0 || join.seq_len > shape_.max_seq_len) {
    return Refusal("joins: seq_len of slot ", id, " must be in [0, ", shape_.max_seq_len, "], got ",
                   join.seq_len);
  }
  if (join.prompt_len < join.seq_len || join.prompt_len > shape_.max_seq_len) {
    return Refusal("joins: prompt_len of slot ", id, " must be in [", join.seq_len, ", ",
                   shape_.max_seq_len, "], from its seq_len to max_seq_len, got ", join.prompt_len);
  }
  if (join.num_undrafted < 0 || join.num_undrafted > join.seq_len) {
    return Refusal("joins: num_undrafted of slot ", id, " must be in [0, ", join.seq_len,
                   "], its seq_len, got ", join.num_undrafted);
  }
  if (join.num_encoder_tokens < 0 || join.num_encoder_tokens > shape_.max_encoder_tokens) {
    return Refusal("joins: num_encoder_tokens of slot ", id, " must be in [0, ",
                   shape_.max_encoder_tokens, "], got ", join.num_encoder_tokens);
  }
  if (join.position_delta != 0 && shape_.num_position_dims == 1) {
    return Refusal("joins: position_delta of slot ", id,
                   " must be 0 if the model's positions have one dimension: got ",
                   join.position_delta);
  }
  if (const absl::Status status = CheckSampling(join.sampling); !status.ok()) {
    return Refusal("joins: sampling of slot ", id, ": ", status.message());
  }
  slot = {.joined = true,
          .seq_len = join.seq_len,
          .prompt_len = join.prompt_len,
          .sequence = ++state_.num_joins,
          .num_encoder_tokens = join.num_encoder_tokens,
          .position_delta = join.position_delta,
          .is_encoded = join.num_encoder_tokens == 0 || join.encoder_is_cached != 0,
          .sampling = join.sampling};
  return absl::OkStatus();
}

absl::Status SlotMirror::ApplyUpdate(const BlockTableUpdate& update) {
  const int id = update.slot.value();
  REPRISE_RETURN_IF_ERROR(CheckSlot("updates", id));
  if (update.group < 0 || update.group >= num_groups()) {
    return Refusal("updates: group of slot ", id, " must be in [0, ", num_groups(), "), got ",
                   update.group);
  }
  const Slot& slot = state_.slots[id];
  if (!slot.joined) return Refusal("updates: slot ", id, " has no sequence");
  const KvGroupSpec& group = shape_.groups[update.group];
  Columns& filled = columns(id, update.group);
  // True: the group has no blocks, and they may begin at any column.
  const bool is_free = LosesBlocks(group) && filled.begin == filled.end;
  const int least = is_free ? 0 : filled.begin;
  const int most = std::min(is_free ? shape_.max_blocks() : filled.end, shape_.max_blocks() - 1);
  if (update.block == kNullBlock && LosesBlocks(group)) {
    const int num_spare = FirstNeededBlock(group, slot.min_seq_len(), shape_.block_size);
    if (update.column < 0 || update.column >= num_spare) {
      return Refusal("updates: column of slot ", id, " in group ", update.group,
                     " is cleared while the sequence needs it: expected one in [0, ", num_spare,
                     "), got ", update.column);
    }
    filled.begin = std::max(filled.begin, update.column + 1);
    filled.end = std::max(filled.end, filled.begin);
    return absl::OkStatus();
  }
  if (update.column < least || update.column > most) {
    return Refusal("updates: column of slot ", id, " in group ", update.group, " must be in [",
                   least, ", ", most, "], the next free one at most, got ", update.column);
  }
  if (const int block = update.block.value(); block < 1 || block >= shape_.num_blocks) {
    return Refusal("updates: block of slot ", id, " must be in [1, ", shape_.num_blocks, "), got ",
                   block);
  }
  if (is_free) filled.begin = update.column;
  filled.end = std::max(filled.end, update.column + 1);
  return absl::OkStatus();
}

absl::Status SlotMirror::CheckCopies(const char* part, absl::Span<const BlockCopy> copies,
                                     int num_src, int num_dst) const {
  for (const BlockCopy& copy : copies) {
    if (num_src < 2 || num_dst < 2) {
      return Refusal(part, ": the runner has no host memory for swapped blocks: expected none, ",
                     "got ", copies.size());
    }
    if (copy.src < 1 || copy.src >= num_src) {
      return Refusal(part, ": src blocks must be in [1, ", num_src, "), got ", copy.src, " to ",
                     copy.dst);
    }
    if (copy.dst < 1 || copy.dst >= num_dst) {
      return Refusal(part, ": dst blocks must be in [1, ", num_dst, "), got ", copy.src, " to ",
                     copy.dst);
    }
  }
  return absl::OkStatus();
}

absl::Status SlotMirror::CheckTokens(const char* part, int slot,
                                     absl::Span<const int32_t> tokens) const {
  for (const int32_t token : tokens) {
    if (token >= 0 && token < shape_.vocab_size) continue;
    return Refusal(part, ": token of slot ", slot, " must be in [0, ", shape_.vocab_size, "), got ",
                   token);
  }
  return absl::OkStatus();
}

absl::Status SlotMirror::CheckEncoderBlocks(const char* part, int slot) const {
  const int num_tokens = state_.slots[slot].num_encoder_tokens;
  for (int group = 0; group < num_groups(); ++group) {
    if (shape_.groups[group].retention != KvRetention::kCross) continue;
    const int num_columns = columns(slot, group).end;
    if (num_tokens <= int64_t{num_columns} * shape_.block_size) continue;
    return Refusal(part, ": slot ", slot, " has too few blocks in cross group ", group,
                   ": expected room for ", num_tokens, " tokens, got ", num_columns, " blocks of ",
                   shape_.block_size);
  }
  return absl::OkStatus();
}

absl::Status SlotMirror::ApplyEncode(const ScheduledEncode& encode, StepDemand& demand) {
  const int id = encode.slot.value();
  REPRISE_RETURN_IF_ERROR(CheckSlot("encodes", id));
  Slot& slot = state_.slots[id];
  if (!slot.joined) return Refusal("encodes: slot ", id, " has no sequence");
  if (slot.is_encoded) {
    return Refusal("encodes: slot ", id, " must not be encoded: it joined without encoder ",
                   "tokens, or they have been encoded");
  }
  const int num_tokens = static_cast<int>(encode.tokens.size());
  if (num_tokens != slot.num_encoder_tokens) {
    return Refusal("encodes: slot ", id, " must have num_encoder_tokens of its join: expected ",
                   slot.num_encoder_tokens, ", got ", num_tokens);
  }
  REPRISE_RETURN_IF_ERROR(CheckTokens("encodes", id, encode.tokens));
  REPRISE_RETURN_IF_ERROR(CheckEncoderBlocks("encodes", id));
  slot.is_encoded = true;
  demand.num_encoder_tokens += num_tokens;
  if (demand.num_encoder_tokens > shape_.max_encoder_step_tokens) {
    return Refusal("encodes: too many tokens in one step: expected at most ",
                   shape_.max_encoder_step_tokens, ", got ", demand.num_encoder_tokens, " or more");
  }
  return absl::OkStatus();
}

absl::Status SlotMirror::CheckRowBlocks(int slot, int64_t seq_len) const {
  for (int group = 0; group < num_groups(); ++group) {
    const KvGroupSpec& spec = shape_.groups[group];
    if (spec.retention == KvRetention::kCross) continue;
    const Columns& filled = columns(slot, group);
    if (seq_len > int64_t{filled.end} * shape_.block_size) {
      return Refusal("rows: slot ", slot, " has too few blocks in group ", group,
                     ": expected room for ", seq_len, " tokens, got ", filled.end, " blocks of ",
                     shape_.block_size);
    }
    if (filled.begin == 0) continue;
    const int first_needed =
        FirstNeededBlock(spec, state_.slots[slot].min_seq_len(), shape_.block_size);
    if (filled.begin > first_needed) {
      return Refusal("rows: slot ", slot, " lacks blocks in group ", group,
                     ": expected columns from ", first_needed, " on, got them from ", filled.begin,
                     " on");
    }
  }
  return absl::OkStatus();
}

absl::Status SlotMirror::CheckPositions(const ScheduledRow& row) const {
  const int id = row.slot.value();
  const RowPositions& positions = row.positions;
  const int num_tokens = static_cast<int>(row.tokens.size());
  if (positions.count != 0 &&
      (shape_.num_position_dims == 1 || positions.num_dims != shape_.num_position_dims)) {
    return Refusal("rows: positions of slot ", id, " must have the model's dimensions: expected ",
                   shape_.num_position_dims == 1 ? "none, for it has one"
                                                 : absl::StrCat(shape_.num_position_dims),
                   ", got ", positions.num_dims);
  }
  if (positions.count < 0 || positions.count > num_tokens) {
    return Refusal("rows: positions of slot ", id,
                   " must not outnumber the row's tokens: expected 0 to ", num_tokens, ", got ",
                   positions.count);
  }
  if (positions.count > 0 && positions.data == nullptr) {
    return Refusal("rows: positions of slot ", id, " must not be null");
  }
  for (int dim = 0; dim < shape_.num_position_dims; ++dim) {
    for (int i = 0; i < positions.count; ++i) {
      const int32_t position = positions.data[dim * positions.dim_stride + i];
      if (position >= 0 && position < shape_.max_position) continue;
      return Refusal("rows: positions of slot ", id, " must be in [0, ", shape_.max_position,
                     "), got ", position, " for token ", i, " in dimension ", dim);
    }
  }
  // Checks the tokens without explicit positions.
  const Slot& slot = state_.slots[id];
  const int64_t first = int64_t{slot.seq_len} + positions.count + slot.position_delta;
  const int64_t last = int64_t{slot.seq_len} + row.query_len() - 1 + slot.position_delta;
  if (positions.count == row.query_len() || (first >= 0 && last < shape_.max_position)) {
    return absl::OkStatus();
  }
  return Refusal("rows: slot ", id, " with position_delta ", slot.position_delta,
                 " would have positions out of range: expected [0, ", shape_.max_position,
                 "), got ", first, " to ", last);
}

absl::Status SlotMirror::CheckEmbeddings(const ScheduledBatch& batch) const {
  int end_row = 0;        // row at which the previous range ends
  int64_t end_token = 0;  // token at which the previous range ends
  for (size_t i = 0; i < batch.embeddings.size(); ++i) {
    const ScheduledEmbeddings& range = batch.embeddings[i];
    if (range.row < 0 || static_cast<size_t>(range.row) >= batch.rows.size()) {
      return Refusal("embeddings[", i, "]: row must be in [0, ", batch.rows.size(), "), got ",
                     range.row);
    }
    REPRISE_RETURN_IF_ERROR(
        CheckEmbeddingRows(absl::StrCat("embeddings[", i, "]"), range.rows, shape_.embeddings));
    const int64_t num_tokens = static_cast<int64_t>(batch.rows[range.row].tokens.size());
    const int64_t end = int64_t{range.first_token} + range.rows.num_rows;
    if (range.first_token < 0 || end > num_tokens) {
      return Refusal("embeddings[", i, "]: tokens must lie within the ", num_tokens,
                     " tokens of row ", range.row, ": got ", range.first_token, " to ", end);
    }
    if (range.row < end_row || (range.row == end_row && range.first_token < end_token)) {
      return Refusal("embeddings[", i,
                     "]: must not overlap or precede the previous entry, which ends at token ",
                     end_token, " of row ", end_row, ", got token ", range.first_token, " of row ",
                     range.row);
    }
    end_row = range.row;
    end_token = end;
  }
  return absl::OkStatus();
}

void SlotMirror::Settle(const UnsettledRow& row, int num_new) {
  Slot& slot = state_.slots[row.slot.value()];
  if (!slot.joined || slot.sequence != row.sequence) return;
  slot.seq_len -= 1 + row.num_drafts - num_new;
  slot.num_unsettled -= row.num_drafts;
}

absl::Status SlotMirror::CheckDrafts(const ScheduledRow& row) const {
  const int id = row.slot.value();
  if (row.num_drafts < 0 || (row.num_drafts > 0 && !row.drafts.empty())) {
    return Refusal("rows: slot ", id, " must not have both drafts and num_drafts: expected ",
                   "num_drafts 0 with drafts, and at least 0 without, got ", row.num_drafts,
                   " with ", row.drafts.size());
  }
  if (row.draft_count() > shape_.drafts.max_drafts) {
    return Refusal("rows: drafts of slot ", id, " are more than max_drafts: expected at most ",
                   shape_.drafts.max_drafts, ", got ", row.draft_count());
  }
  if (row.num_drafts > 0 && !shape_.drafts.has_proposer) {
    return Refusal("rows: slot ", id,
                   " requests drafts from a drafter, but the runner has no drafter: ",
                   "expected num_drafts 0, got ", row.num_drafts);
  }
  if (!row.tokens.empty() || row.output != RowOutput::kToken || row.logits != RowLogits::kLast ||
      !row.allowed_tokens.empty()) {
    return Refusal("rows: slot ", id, " has drafts: expected no tokens, RowOutput::kToken, ",
                   "RowLogits::kLast and no allowed_tokens");
  }
  return CheckTokens("drafts", id, row.drafts);
}

absl::Status SlotMirror::CheckParents(const ScheduledRow& row) const {
  const int id = row.slot.value();
  if (!shape_.drafts.has_trees) {
    return Refusal("rows: parents of slot ", id, " require a runner whose drafts may be trees ",
                   "(DraftShape::kTree): expected none, got ", row.parents.size());
  }
  if (row.parents.size() != row.drafts.size()) {
    return Refusal("rows: parents of slot ", id, " must have one entry per draft: expected ",
                   row.drafts.size(), ", got ", row.parents.size());
  }
  for (size_t i = 0; i < row.parents.size(); ++i) {
    if (row.parents[i] >= 0 && row.parents[i] <= static_cast<int32_t>(i)) continue;
    return Refusal("rows: parents[", i, "] of slot ", id,
                   " must be an earlier node: ", "expected 0 to ", i, ", got ", row.parents[i]);
  }
  return absl::OkStatus();
}

absl::Status SlotMirror::ApplyRow(const ScheduledRow& row, StepDemand& demand) {
  const int id = row.slot.value();
  REPRISE_RETURN_IF_ERROR(CheckSlot("rows", id));
  Slot& slot = state_.slots[id];
  if (!slot.joined) return Refusal("rows: slot ", id, " has no sequence");
  if (slot.has_row) return Refusal("rows: slot ", id, " occurs twice");
  if (row.tokens.empty() && !slot.has_token) {
    return Refusal("rows: slot ", id, " has no last token yet, so the row must have tokens");
  }
  if (!slot.is_encoded) {
    return Refusal("rows: slot ", id, " joined with ", slot.num_encoder_tokens,
                   " encoder tokens, which are not encoded yet");
  }
  REPRISE_RETURN_IF_ERROR(CheckTokens("rows", id, row.tokens));
  if (row.num_drafts != 0 || !row.drafts.empty()) REPRISE_RETURN_IF_ERROR(CheckDrafts(row));
  if (!row.parents.empty()) REPRISE_RETURN_IF_ERROR(CheckParents(row));
  if (!row.tokens.empty() && slot.num_unsettled > 0) {
    return Refusal("rows: slot ", id, " must not have tokens while ", slot.num_unsettled,
                   " drafts are not verified: await the steps with these drafts first");
  }
  slot.has_row = true;
  slot.has_token = row.output == RowOutput::kToken;
  const int64_t seq_len = int64_t{slot.seq_len} + row.query_len();
  if (seq_len > shape_.max_seq_len) {
    return Refusal("rows: slot ", id, " would be longer than max_seq_len: expected at most ",
                   shape_.max_seq_len, " tokens, got ", seq_len);
  }
  if (seq_len < slot.prompt_len && row.output != RowOutput::kNone) {
    return Refusal("rows: output of slot ", id, " must be RowOutput::kNone before the end of its ",
                   "prompt: expected a row up to token ", slot.prompt_len,
                   " (prompt_len of its join), got one that ends at token ", seq_len);
  }
  if (shape_.num_position_dims > 1 || row.positions.count != 0) {
    REPRISE_RETURN_IF_ERROR(CheckPositions(row));
  }
  REPRISE_RETURN_IF_ERROR(CheckRowBlocks(id, seq_len));
  if (slot.num_encoder_tokens > 0) REPRISE_RETURN_IF_ERROR(CheckEncoderBlocks("rows", id));
  slot.seq_len = static_cast<int>(seq_len);
  slot.num_unsettled += row.draft_count();
  StepShape& shape = demand.shape;
  shape.num_seqs += 1;
  shape.num_tokens += row.query_len();
  shape.max_query_len = std::max(shape.max_query_len, row.query_len());
  shape.max_seq_len = std::max(shape.max_seq_len, slot.seq_len);
  shape.num_drafts = std::max(shape.num_drafts, row.draft_count());
  shape.has_given_tokens |= !row.tokens.empty();
  if (shape.num_tokens > shape_.max_num_tokens) {
    return Refusal("rows: a step has at most max_num_tokens tokens: expected at most ",
                   shape_.max_num_tokens, ", got ", shape.num_tokens, " or more");
  }
  if (slot.sampling.temperature > 0.0f && row.output == RowOutput::kToken) {
    demand.features = SamplingFeatures::kGeneral;
  }
  if (row.num_earlier_logits() > 0) REPRISE_RETURN_IF_ERROR(ApplyEarlierLogits(row, demand));
  return CheckNextToken(row);
}

absl::Status SlotMirror::ApplyEarlierLogits(const ScheduledRow& row, StepDemand& demand) const {
  int& num_earlier_logits = demand.shape.num_earlier_logits;
  num_earlier_logits += row.num_earlier_logits();
  if (num_earlier_logits <= shape_.max_earlier_logits) return absl::OkStatus();
  return Refusal("rows: the rows up to that of slot ", row.slot.value(),
                 " request logits of too many tokens before the last of their rows for ",
                 "max_earlier_logits: expected at most ", shape_.max_earlier_logits, ", got ",
                 num_earlier_logits, " or more");
}

absl::Status SlotMirror::CheckNextToken(const ScheduledRow& row) const {
  if (row.next_token == -1) return absl::OkStatus();
  const int id = row.slot.value();
  if (row.output == RowOutput::kToken) {
    return Refusal("rows: next_token of slot ", id,
                   " is for rows with RowOutput::kNone: expected -1, got ", row.next_token);
  }
  if (row.next_token < 0 || row.next_token >= shape_.vocab_size) {
    return Refusal("rows: next_token of slot ", id, " must be -1 or in [0, ", shape_.vocab_size,
                   "), got ", row.next_token);
  }
  return absl::OkStatus();
}

}  // namespace reprise
