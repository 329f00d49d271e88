// The batch that a scheduler is building: its rows, the changes of slots, and the remaining budgets
// of the step.
//
//   BatchInProgress batch(shape, policy);
//   batch.Begin();
//   batch.AddRow(BatchRowKind::kDecode, row, open_row);   // decodes, then prompts; drafts last
//   if (batch.has_rows()) Launch(batch.Finish(updates, copies));
//
// A batch without rows is not launched. Its leaves and swaps stay for the next batch with rows.
//
// Invariants, checked by CheckInvariants():
//   1. rows() and open_rows() have one entry per row, in the same order.
//   2. The counters of tokens and of earlier logits are sums over the rows. There are at most
//      max_num_seqs rows, with at most max_num_tokens tokens in total.
//   3. The slots of the rows are distinct.
//
// Thread safety: none; one owner. Allocates in construction, and later only for embeddings, swaps
// and the first masker.

#ifndef REPRISE_ENGINE_SCHEDULING_BATCH_IN_PROGRESS_H_
#define REPRISE_ENGINE_SCHEDULING_BATCH_IN_PROGRESS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/tables/block_table_update.h"
#include "reprise/engine/placeholder_map.h"
#include "reprise/engine/scheduler_policy.h"
#include "reprise/engine/scheduling/open_batches.h"
#include "reprise/engine/scheduling/sequence_state.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/slots/scheduled_batch.h"

namespace reprise {

// Decodes and chunks of prompts have different budgets.
enum class BatchRowKind : int8_t { kDecode, kPrompt };

class BatchInProgress {
 public:
  BatchInProgress(const RunnerShape& shape, const SchedulerPolicy& policy);

  // ---- One batch: Begin(), additions, Finish().

  // Starts a batch. Keeps the leaves and swaps of a batch that was not launched.
  void Begin();

  // Ends the batch, and returns a view that is valid until the next Begin(). The view is empty if
  // the batch has no rows; `updates` and `copies` must then be empty, because they would be lost.
  const ScheduledBatch& Finish(absl::Span<const BlockTableUpdate> updates,
                               absl::Span<const BlockCopy> copies);

  // Whether the batch is finished and has rows, and no slot was left since.
  bool can_take_back() const { return was_launched_ && next_leaves_.empty(); }

  // Takes back the finished batch, because the runner has refused it. Its joins are dropped. Its
  // leaves stay for the next batch, and so do leaves since Finish(), except of slots that this
  // batch joined. REQUIRES: can_take_back() was true after Finish(); only Leave() was called since.
  void TakeBack();

  // ---- Slots.

  // Reports in the next batch that the slot's sequence has left it.
  void Leave(SlotId slot) { next_leaves_.push_back(slot); }
  // Reports in this batch that the slot's sequence was preempted, so that the slot can be joined
  // again in the same batch. Drops the slot's logits request.
  void LeaveNow(SlotId slot);
  void Join(const SlotJoin& join) { joins_.push_back(join); }
  void AddLogitsRequest(const LogitsRequest& request) { logits_requests_.push_back(request); }
  void AddEncode(const ScheduledEncode& encode);
  // Whether the newest encode belongs to the slot.
  bool encodes(SlotId slot) const { return !encodes_.empty() && encodes_.back().slot == slot; }

  // ---- Swaps.

  void SwapOut(absl::Span<const BlockCopy> blocks);
  void SwapIn(absl::Span<const BlockCopy> blocks);
  bool has_swap_ins() const { return !swap_ins_.empty(); }

  // ---- Rows.

  // Adds a row, without drafts. `open` needs the sequence, the output, num_new_tokens and
  // scores_prompt; this call fills in the other fields. REQUIRES: the budgets hold the row's
  // tokens.
  void AddRow(BatchRowKind kind, const ScheduledRow& row, const OpenRow& open);
  // Adds the embeddings of the next row's tokens: `num_tokens` tokens of the prompt from
  // `first_token`. Call it before AddRow().
  void AddEmbeddings(const RequestState& added, int first_token, int num_tokens);
  // Adds `num_drafts` drafts in `num_levels` levels to a decode: the drafts `given`, or proposals
  // of the drafter if `given` is empty. Counts them in the sequence's num_scheduled and
  // num_in_flight. REQUIRES: the row has no drafts, num_drafts >= 1, and the budget holds them.
  void AddDrafts(int row, int num_levels, int num_drafts, absl::Span<const int32_t> given);
  // Memory for the mask of the next row, [mask_words]. REQUIRES: ReserveMasks() was called.
  absl::Span<int32_t> NextMask();
  // Allocates masks for all rows, unless done.
  void ReserveMasks();

  bool has_rows() const { return !rows_.empty(); }
  int num_rows() const { return static_cast<int>(rows_.size()); }
  absl::Span<const ScheduledRow> rows() const { return rows_; }
  absl::Span<const OpenRow> open_rows() const { return open_rows_; }
  // Marks all rows: the step feeds their tokens to a drafter with a KV cache.
  void MarkFedRows();
  // For OpenBatches::Push(), after Finish(): the caller may take the rows.
  std::vector<OpenRow>& finished_rows() { return open_rows_; }

  // ---- Budgets.

  // Maximum number of tokens of the next prompt row: the minimum of the tokens left in the step,
  // the prefill chunk, and, with decodes, the rest of max_prefill_tokens_while_decoding. May be
  // negative.
  int prompt_tokens_left() const;
  int tokens_left() const { return max_num_tokens_ - num_tokens_; }
  int num_prompt_tokens() const { return num_prompt_tokens_; }
  int num_earlier_logits() const { return num_earlier_logits_; }
  // Encoder tokens that the step can still encode.
  int encoder_tokens_left() const { return max_encoder_step_tokens_ - num_encoder_tokens_; }
  // Whether a running sequence found no blocks for its next tokens. Freed blocks are reserved for
  // this sequence: no sequence is admitted, and no drafts are added.
  bool lacks_blocks() const { return lacks_blocks_; }
  void NoteLackOfBlocks() { lacks_blocks_ = true; }

  void CheckInvariants() const;

 private:
  int max_num_seqs_;
  int max_num_tokens_;
  int max_encoder_step_tokens_;
  int mask_words_;
  int prefill_chunk_;
  int max_prefill_tokens_while_decoding_;

  bool was_launched_ = true;
  std::vector<SlotId> leaves_;
  std::vector<SlotId> next_leaves_;  // slots left since the last Begin()
  std::vector<SlotJoin> joins_;
  std::vector<LogitsRequest> logits_requests_;
  std::vector<BlockCopy> swap_outs_;
  std::vector<BlockCopy> swap_ins_;
  std::vector<ScheduledEncode> encodes_;
  std::vector<ScheduledRow> rows_;
  std::vector<OpenRow> open_rows_;
  std::vector<ScheduledEmbeddings> embeddings_;
  std::vector<PlaceholderCopy> embedding_copies_;  // scratch
  std::vector<int32_t> masks_;                     // [max_num_seqs, mask_words] by row, or empty
  bool lacks_blocks_ = false;
  int num_tokens_ = 0;
  int num_prompt_tokens_ = 0;
  int num_decodes_ = 0;
  int num_encoder_tokens_ = 0;
  int num_earlier_logits_ = 0;
  ScheduledBatch view_;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SCHEDULING_BATCH_IN_PROGRESS_H_
