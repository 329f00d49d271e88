// Frees blocks when the pool runs out: chooses the running sequence to preempt, and swaps it to
// host memory or lets it be recomputed.
//
// The victim is the running sequence with the lowest priority, and among these the newest
// admission. Its blocks are freed, and its tokens are computed again later. Alternatively, the
// content of its blocks is moved to host memory and back, if host blocks are free and the rule
// (engine/preemption_rule.h) expects this to take less time. Only committed tokens are moved. The
// generated tokens are the same either way, except for rounding: the sampling counter continues.
// Rows of the victim in flight are discarded. Host blocks are freed when the sequence returns or
// ends.
//
// A swap is part of the batch in progress. The runner executes a batch in this order: moves out,
// moves in, copies, rows. A block that a move frees can be reused by operations later in this
// order:
//
//   a cache block that was moved out   by moves in, copies and rows of the same batch
//   a host block that was read         by moves out of the next batch, not of the same batch
//
// Blocks that are destinations of moves in or copies in this batch cannot be moved out in the same
// batch. A batch that already has moves in or copies therefore moves no sequence out; its victims
// are recomputed.
//
// Invariants, checked by CheckInvariants():
//   1. The invariants of the swap store. Its plan is empty between calls.
//   2. The store holds exactly the sequences with SequenceState::stored_as, and these sequences
//      wait.
//
// Thread safety: none; one owner. Cost: O(blocks) per preemption; swaps allocate.

#ifndef REPRISE_ENGINE_SCHEDULING_PREEMPTOR_H_
#define REPRISE_ENGINE_SCHEDULING_PREEMPTOR_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "reprise/base/ids.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/blocks/swap_store.h"
#include "reprise/cache/prefix/prefix_match.h"
#include "reprise/engine/preemption_rule.h"
#include "reprise/engine/scheduler_policy.h"
#include "reprise/engine/scheduling/batch_in_progress.h"
#include "reprise/engine/scheduling/cache_limits.h"
#include "reprise/engine/scheduling/sequence_state.h"
#include "reprise/engine/scheduling/sequence_table.h"
#include "reprise/runner/runner_shape.h"

namespace reprise {

class Preemptor {
 public:
  // `blocks`, `limits` and `table` must outlive the preemptor. REQUIRES: policy.preemption_costs.
  // Errors: InvalidArgument naming the option of the swap store.
  static absl::StatusOr<std::unique_ptr<Preemptor>> Create(const RunnerShape& shape,
                                                           const SchedulerPolicy& policy,
                                                           BlockManager* blocks,
                                                           const CacheLimits* limits,
                                                           SequenceTable* table);

  // Allocates blocks for the first `num_tokens` tokens of a running sequence, and preempts the last
  // running sequences as necessary. Returns false if this preempted the sequence itself. Also
  // returns false, with its blocks unchanged, if no other sequence runs and the sequence must wait
  // for the commit of its batches in flight; `batch` records this (NoteLackOfBlocks). REQUIRES: no
  // sequence that would be preempted has a row in `batch`.
  bool MakeRoom(SequenceState& sequence, int num_tokens, int num_in_flight, BatchInProgress& batch);

  // Whether a sequence in the swap store should return by a swap rather than by recomputing its
  // tokens, if the cache has its first `num_found` tokens.
  bool ReturnsBySwap(const SequenceState& sequence, int num_found) const;

  // Puts a sequence in the swap store into the slot, with room for its next chunk of at most
  // `max_chunk` tokens. Returns its tokens as prefix hits. Errors: ResourceExhausted if too few
  // blocks are free; a failed call changes nothing.
  absl::StatusOr<PromptHits> SwapIn(SequenceState& sequence, SlotId slot, int max_chunk,
                                    BatchInProgress& batch);

  // Frees the host blocks of a sequence, if it has any.
  void Drop(SequenceState& sequence);

  int64_t num_preemptions() const { return num_preemptions_; }  // by either means
  const SwapStatistics& swap_statistics() const { return swap_statistics_; }
  // Null without host blocks.
  const SwapStore* swap_store() const { return swap_store_ ? &*swap_store_ : nullptr; }

  void CheckInvariants() const;

 private:
  Preemptor(const RunnerShape& shape, const SchedulerPolicy& policy, BlockManager* blocks,
            const CacheLimits* limits, SequenceTable* table);

  void PreemptLast(BatchInProgress& batch);
  // Moves the blocks of a running sequence to the host and empties its slot. Returns false, with
  // nothing changed, if the rule prefers recomputation, or too few host blocks are free.
  bool SwapOut(SequenceState& sequence, BatchInProgress& batch);
  // Number of leading tokens of the sequence in a slot whose blocks are shared with other
  // sequences.
  int NumTokensUsedByOthers(SlotId slot) const;

  BlockManager* blocks_;
  const CacheLimits* limits_;
  SequenceTable* table_;
  int64_t bytes_per_block_;
  PreemptionMode mode_;
  PreemptionCosts costs_;
  std::optional<SwapStore> swap_store_;  // over *blocks_; nullopt: no host blocks
  int64_t next_stored_id_ = 0;
  SwapStatistics swap_statistics_;
  int64_t num_preemptions_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SCHEDULING_PREEMPTOR_H_
