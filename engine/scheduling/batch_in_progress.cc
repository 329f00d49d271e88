#include "reprise/engine/scheduling/batch_in_progress.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "glog/logging.h"
#include "reprise/engine/prompt_content.h"

namespace reprise {

BatchInProgress::BatchInProgress(const RunnerShape& shape, const SchedulerPolicy& policy)
    : max_num_seqs_(shape.max_num_seqs),
      max_num_tokens_(shape.max_num_tokens),
      max_encoder_step_tokens_(shape.max_encoder_step_tokens),
      mask_words_(shape.mask_words),
      prefill_chunk_(policy.prefill_chunk),
      max_prefill_tokens_while_decoding_(policy.max_prefill_tokens_while_decoding) {
  leaves_.reserve(max_num_seqs_);
  next_leaves_.reserve(max_num_seqs_);
  joins_.reserve(max_num_seqs_);
  logits_requests_.reserve(max_num_seqs_);
  encodes_.reserve(max_num_seqs_);
  rows_.reserve(max_num_seqs_);
  open_rows_.reserve(max_num_seqs_);
}

void BatchInProgress::Begin() {
  if (was_launched_) {
    leaves_.clear();
    swap_outs_.clear();
    swap_ins_.clear();
  }
  leaves_.insert(leaves_.end(), next_leaves_.begin(), next_leaves_.end());
  next_leaves_.clear();
  joins_.clear();
  logits_requests_.clear();
  encodes_.clear();
  rows_.clear();
  open_rows_.clear();
  embeddings_.clear();
  lacks_blocks_ = false;
  num_tokens_ = 0;
  num_prompt_tokens_ = 0;
  num_decodes_ = 0;
  num_encoder_tokens_ = 0;
  num_earlier_logits_ = 0;
}

const ScheduledBatch& BatchInProgress::Finish(absl::Span<const BlockTableUpdate> updates,
                                              absl::Span<const BlockCopy> copies) {
  was_launched_ = !rows_.empty();
  view_ = {};
  if (!was_launched_) return view_;
  int num_earlier_before = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const int num_earlier = rows_[i].num_earlier_logits();
    open_rows_[i].first_earlier = num_earlier_before;
    open_rows_[i].has_earlier = num_earlier > 0;
    num_earlier_before += num_earlier;
  }
  view_ = {.leaves = leaves_,
           .joins = joins_,
           .logits_requests = logits_requests_,
           .updates = updates,
           .swap_outs = swap_outs_,
           .swap_ins = swap_ins_,
           .copies = copies,
           .encodes = encodes_,
           .rows = rows_,
           .embeddings = embeddings_};
  return view_;
}

void BatchInProgress::TakeBack() {
  CHECK(was_launched_);
  // If a slot was joined in this batch and had another sequence before, that sequence's leave is in
  // leaves_ already.
  for (const SlotId slot : next_leaves_) {
    const bool joined =
        absl::c_any_of(joins_, [&](const SlotJoin& join) { return join.slot == slot; });
    if (!joined) leaves_.push_back(slot);
  }
  next_leaves_.clear();
  was_launched_ = false;
}

void BatchInProgress::LeaveNow(SlotId slot) {
  leaves_.push_back(slot);
  std::erase_if(logits_requests_,
                [&](const LogitsRequest& request) { return request.slot == slot; });
}

void BatchInProgress::AddEncode(const ScheduledEncode& encode) {
  encodes_.push_back(encode);
  num_encoder_tokens_ += static_cast<int>(encode.tokens.size());
}

void BatchInProgress::SwapOut(absl::Span<const BlockCopy> blocks) {
  swap_outs_.insert(swap_outs_.end(), blocks.begin(), blocks.end());
}

void BatchInProgress::SwapIn(absl::Span<const BlockCopy> blocks) {
  swap_ins_.insert(swap_ins_.end(), blocks.begin(), blocks.end());
}

void BatchInProgress::AddRow(BatchRowKind kind, const ScheduledRow& row, const OpenRow& open) {
  SequenceState& sequence = *open.sequence;
  OpenRow& added = open_rows_.emplace_back(open);
  added.admission = sequence.admission;
  added.first_token = sequence.num_scheduled;
  added.num_tokens = row.query_len();
  added.encodes = encodes(row.slot);
  rows_.push_back(row);
  sequence.num_scheduled += added.num_tokens;
  sequence.num_in_flight += added.num_new_tokens;
  ++sequence.added->num_open_rows;
  num_tokens_ += added.num_tokens;
  num_earlier_logits_ += row.num_earlier_logits();
  if (kind == BatchRowKind::kDecode) {
    ++num_decodes_;
  } else {
    num_prompt_tokens_ += added.num_tokens;
  }
}

void BatchInProgress::AddEmbeddings(const RequestState& added, int first_token, int num_tokens) {
  if (added.content.ranges.empty()) return;
  AppendEmbeddings(added.request, added.content, first_token, num_tokens, num_rows(),
                   embedding_copies_, embeddings_);
}

void BatchInProgress::AddDrafts(int row, int num_levels, int num_drafts,
                                absl::Span<const int32_t> given) {
  ScheduledRow& scheduled = rows_[row];
  if (given.empty()) {
    scheduled.num_drafts = num_drafts;
  } else {
    scheduled.drafts = given;
  }
  OpenRow& open = open_rows_[row];
  open.has_given_drafts = !given.empty();
  open.num_drafts = num_drafts;
  open.num_levels = num_levels;
  open.num_tokens += num_drafts;
  open.num_new_tokens += num_levels;
  open.sequence->num_scheduled += num_drafts;
  open.sequence->num_in_flight += num_levels;
  num_tokens_ += num_drafts;
  num_earlier_logits_ += num_drafts;
}

void BatchInProgress::MarkFedRows() {
  for (OpenRow& row : open_rows_) row.feeds_drafter = true;
}

absl::Span<int32_t> BatchInProgress::NextMask() {
  CHECK(!masks_.empty()) << "ReserveMasks()";
  return absl::MakeSpan(masks_).subspan(rows_.size() * mask_words_, mask_words_);
}

void BatchInProgress::ReserveMasks() {
  masks_.resize(static_cast<size_t>(max_num_seqs_) * mask_words_);
}

int BatchInProgress::prompt_tokens_left() const {
  int left = std::min(tokens_left(), prefill_chunk_);
  if (num_decodes_ > 0 && max_prefill_tokens_while_decoding_ > 0) {
    left = std::min(left, max_prefill_tokens_while_decoding_ - num_prompt_tokens_);
  }
  return left;
}

void BatchInProgress::CheckInvariants() const {
  CHECK_LE(num_rows(), max_num_seqs_) << "2";
  int num_tokens = 0;
  int num_earlier_logits = 0;
  std::vector<bool> has_row(max_num_seqs_, false);
  for (const ScheduledRow& row : rows_) {
    num_tokens += row.query_len();
    num_earlier_logits += row.num_earlier_logits();
    CHECK(!has_row[row.slot.value()]) << "3: slot " << row.slot;
    has_row[row.slot.value()] = true;
  }
  CHECK_EQ(num_tokens, num_tokens_) << "2";
  CHECK_LE(num_tokens, max_num_tokens_) << "2";
  CHECK_EQ(num_earlier_logits, num_earlier_logits_) << "2";
  if (open_rows_.empty()) return;  // no rows, or moved to OpenBatches
  CHECK_EQ(open_rows_.size(), rows_.size()) << "1";
  for (size_t i = 0; i < rows_.size(); ++i) {
    CHECK_EQ(open_rows_[i].num_tokens, rows_[i].query_len()) << "1: row " << i;
  }
}

}  // namespace reprise
