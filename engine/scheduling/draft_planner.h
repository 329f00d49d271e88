// Chooses the number of drafts of each row, and records their acceptance.
//
//   planner.AddDrafts(batch);                            // the last rows to change in a batch
//   planner.ObserveStep(duration, open_rows, result);    // before the commit of the batch
//   planner.Accept(row, new_tokens, num_rows);           // for each row with drafts
//   planner.NoteCommitted(sequence, {first, end});       // tokens whose keys are committed
//
// Draft counts. A decode gets drafts if the policy and the acceptance of the sequence allow them
// (engine/speculation_policy.h), also in batches with prefill chunks. Its row generates 1 to 1 +
// drafts tokens; until the commit the sequence's length is an upper bound. Drafts use the tokens
// and blocks that the batch's rows leave, and preempt no sequence. Room of rejected drafts is kept
// for the next row. Rows of sequences with a masker, forced tokens, penalties, biases, stages or
// log-probabilities get no drafts.
//
// Predictions. If a request has predicted_tokens, the sequence's drafts are the tokens that follow
// the end of its generated text in the prediction, as long as this end is found there. These drafts
// are a chain, even if the drafter proposes trees.
//
// Drafters with a KV cache (DrafterKeys). Such a drafter reads at most 1 + drafts tokens per row. A
// drafter that lags by more tokens gets catch-up rows with the maximum number of drafts. A catch-up
// row generates one token, and is excluded from acceptance and timing statistics. Sequences that
// are about to end, or accept too few drafts, do not catch up. The planner records per block how
// many of its tokens the drafter has read, so that prefix hits reuse the drafter's keys.
//
// Thread safety: none; one owner. Does not allocate after construction.

#ifndef REPRISE_ENGINE_SCHEDULING_DRAFT_PLANNER_H_
#define REPRISE_ENGINE_SCHEDULING_DRAFT_PLANNER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/engine/draft_costs.h"
#include "reprise/engine/request.h"
#include "reprise/engine/scheduler_policy.h"
#include "reprise/engine/scheduling/batch_in_progress.h"
#include "reprise/engine/scheduling/cache_limits.h"
#include "reprise/engine/scheduling/open_batches.h"
#include "reprise/engine/scheduling/sequence_state.h"
#include "reprise/engine/speculation/drafted_blocks.h"
#include "reprise/engine/speculation_policy.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/speculation/draft_capability.h"
#include "reprise/runner/step_result.h"

namespace reprise {

class DraftPlanner {
 public:
  // `blocks` and `limits` must outlive the planner. REQUIRES: policy.speculation; it fits the
  // shape's level_drafts.
  DraftPlanner(const RunnerShape& shape, const SchedulerPolicy& policy, BlockManager* blocks,
               const CacheLimits* limits);

  // Maximum number of drafts per row of a request's sequences: RequestState::max_drafts.
  int MaxDraftsOf(const Request& request) const;

  // Sets SequenceState::num_drafted of a sequence that was just admitted with `num_hits` tokens in
  // the cache, found there or swapped in. Returns the number of hits that a drafter with a KV cache
  // has not read (SlotJoin::num_undrafted).
  int Join(SequenceState& sequence, SlotId slot, int num_hits, bool swapped_in);

  // Adds drafts to the decodes of the batch, and marks its rows if the step feeds a drafter with a
  // KV cache. Call it after all rows were added.
  void AddDrafts(BatchInProgress& batch);

  // Records the time of a step, unless it has prefill chunks of several tokens or catch-up rows.
  // REQUIRES: `rows` are the rows of this step, and earlier batches are committed.
  void ObserveStep(absl::Duration duration, absl::Span<const OpenRow> rows,
                   const StepResult& result);
  // Records a step that failed.
  void ObserveFailedStep() { costs_.ObserveOtherStep(); }

  // Records the acceptance of a row's drafts, and subtracts rejected drafts from the sequence's
  // counts. `num_rows`: number of rows of the step. REQUIRES: row.num_drafts > 0; 1 to 1 +
  // row.num_levels new tokens, which are not committed yet.
  void Accept(const OpenRow& row, absl::Span<const int32_t> new_tokens, int num_rows);
  // Records the tokens that a step has fed to a drafter. Call it before the commit of a row without
  // drafts.
  void NoteFed(const OpenRow& row);
  // Records how many tokens of a sequence in a slot a drafter has read, for the blocks of the
  // committed tokens `range`.
  void NoteCommitted(const SequenceState& sequence, const TokenSpan& range);

  const SpeculationStatistics& statistics() const { return statistics_; }
  const DraftCosts& costs() const { return costs_; }

 private:
  // Maximum number of levels of the batch's rows, by the policy and by measured times.
  int StepLevels(const BatchInProgress& batch);
  // Maximum number of levels of a row, if the batch had no other row; 0 unless it is a decode.
  int MaxLevels(const OpenRow& open, const ScheduledRow& row) const;
  // Number of drafts, or levels of a tree, by the sequence's acceptance; at most `most`.
  int NumByAcceptance(SequenceState& sequence, int most) const;
  // Number of the drafter's levels for the sequence's next row, at most `most`.
  int WantedLevels(SequenceState& sequence, int most) const;
  // Allocates room for up to `num_tokens` tokens after the scheduled ones, from free and cached
  // blocks, without preemption. Returns for how many. `may_grow`: whether to take blocks; set to
  // false when they run out.
  int RoomFor(const SequenceState& sequence, int num_tokens, bool& may_grow);
  // Whether the drafter has read all tokens up to the newest in a row with drafts, and so has
  // proposed them. It may have read more than is counted: a step that captures its graph feeds a
  // row's tokens twice. REQUIRES: the batches before are committed, this one is not.
  bool HasProposed(const OpenRow& row, absl::Span<const int32_t> new_tokens) const;
  bool has_drafter_keys() const { return capability_.keys != DrafterKeys::kNone; }
  // Number of drafts in `num_levels` levels, and of whole levels in `num_drafts` drafts.
  int DraftsOf(int num_levels) const;
  int LevelsOf(int num_drafts) const;

  DraftCapability capability_;
  SpeculationPolicy policy_;
  int64_t max_earlier_logits_;  // per step: room for drafts of all rows, or for logits of prompts
  BlockManager* blocks_;
  const CacheLimits* limits_;
  SpeculationStatistics statistics_;
  DraftCosts costs_;  // read with SpeculationPolicy::measures_steps
  // For a drafter with a KV cache: indexed by the blocks of a group of full attention, whose blocks
  // its layers share.
  std::optional<DraftedBlocks> drafted_blocks_;
  int drafted_group_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SCHEDULING_DRAFT_PLANNER_H_
