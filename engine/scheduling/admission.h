// From Scheduler::Add() to the first row: checks requests, and admits waiting sequences to slots.
//
// Order. Sequences are admitted by priority, then in order of arrival. A waiting sequence does not
// displace a running sequence. If a sequence finds too few blocks, all later sequences wait, too.
// No sequence is admitted while a running sequence lacks blocks for its next chunk.
//
// Prefix reuse. Computed keys stay in the cache until their blocks are needed for other content. A
// prompt, or a preempted sequence, begins after its longest cached prefix (SlotJoin::seq_len). Only
// keys of committed batches are found. If a running sequence with at least the same priority is
// computing full blocks of a waiting sequence's prefix, the waiting sequence is admitted once these
// blocks are committed. A slot is reserved for the waiting sequence until then. With partial hits a
// prompt also reuses the leading tokens of the next block, in a copy of the block
// (ScheduledBatch::copies). Requests with different salts share nothing. Embeddings and positions
// are part of a block's hash key, so placeholders of equal images match, and placeholders of
// different images never do.
//
// Several sequences of one request. The first admitted sequence computes the prompt. Its siblings
// wait until the prompt (without an encoder: all but its last token) is committed. Then they fork
// its blocks, and each computes the last prompt token again to get logits. A sequence without a
// running sibling is admitted like any prompt.
//
// Swapped sequences return by a swap if Preemptor::ReturnsBySwap() is true. Otherwise their tokens
// are computed again.
//
// Encoders. The input of a sequence is encoded in the step that admits it, unless the keys of the
// same input are in the cache or are swapped in.
//
// Thread safety: none; one owner. Allocates per request, and for forks and swaps only.

#ifndef REPRISE_ENGINE_SCHEDULING_ADMISSION_H_
#define REPRISE_ENGINE_SCHEDULING_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/ids.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/blocks/sequence_content.h"
#include "reprise/cache/prefix/prefix_match.h"
#include "reprise/engine/request.h"
#include "reprise/engine/scheduler_policy.h"
#include "reprise/engine/scheduling/batch_in_progress.h"
#include "reprise/engine/scheduling/cache_limits.h"
#include "reprise/engine/scheduling/preemptor.h"
#include "reprise/engine/scheduling/sequence_state.h"
#include "reprise/engine/scheduling/sequence_table.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/slots/scheduled_batch.h"

namespace reprise {

// A newly admitted sequence, with a slot and blocks.
struct Admitted {
  SequenceState* sequence = nullptr;
  SlotJoin join = {};       // without num_undrafted; the caller adds the join to the batch
  bool swapped_in = false;  // whether the keys return from host memory
};

class Admission {
 public:
  // The pointers must outlive the admission.
  Admission(const RunnerShape& shape, const SchedulerPolicy& policy, BlockManager* blocks,
            const CacheLimits* limits, SequenceTable* table, Preemptor* preemptor);

  // Adds a request to the table; its sequences wait. Leaves RequestState::max_drafts 0.
  // Errors: the errors of Scheduler::Add(). A failed call changes nothing.
  absl::StatusOr<RequestState*> Add(Request request);

  // Starts over with the first waiting sequence: call it once per batch.
  void BeginBatch() { num_put_off_ = 0; }

  // Admits the next sequence if the batch has tokens left, and a slot and blocks are free. Adds its
  // swap and its encoder input to the batch. The caller must add the sequence's next tokens to the
  // batch before the next call. Returns nullopt if no further sequence can be admitted to the
  // batch.
  std::optional<Admitted> Next(BatchInProgress& batch);

  // Sequences that began with the forked blocks of another sequence of their request.
  int64_t num_forks() const { return num_forks_; }

 private:
  absl::Status CheckRequest(const Request& request) const;
  // Makes the matchers and maskers of the request's sequences. Errors: a factory threw.
  static absl::Status MakeCallbacks(const Request& request, std::vector<SequenceState>& sequences);
  // Sets the content and the range keys, for the request that gets the table's next id.
  void AddContent(RequestState& added) const;
  void InitSequence(RequestState& added, int sample);

  // Whether to put off the admission, because keys of the sequence's prefix are being computed.
  bool AwaitsKeys(SequenceState& sequence) const;
  bool AwaitsSibling(SequenceState& sequence) const;
  bool AwaitsEqualPrefix(SequenceState& sequence) const;

  struct Start {
    PromptHits hits;
    bool swapped_in = false;
  };
  // Puts the sequence's known tokens into the slot, by a swap, a fork or the prefix cache. Errors:
  // ResourceExhausted if too few blocks are free; a failed call changes nothing.
  absl::StatusOr<Start> TakeSlot(SequenceState& sequence, SlotId slot, BatchInProgress& batch);
  absl::StatusOr<PromptHits> AddToCache(const SequenceState& sequence, SlotId slot, int max_chunk);
  // Moves a sequence with blocks in the table's next slot to the running sequences.
  Admitted Admit(SequenceState& sequence, const Start& start, BatchInProgress& batch);
  // Forks the blocks of `sibling` into the slot. Returns nullopt, with nothing changed, if the
  // sibling has lost blocks that are needed, or the pool has no block left.
  std::optional<PromptHits> Fork(const SequenceState& sibling, SlotId slot);
  // Returns a running sequence of the same request that has computed the tokens which `sequence`
  // needs, or nullptr if there is none, or no token to share.
  const SequenceState* ForkableSibling(const SequenceState& sequence) const;
  // Calls `use` with the sequence's known tokens as a prompt, and returns its result. With windows
  // the prompt gets room for `chunk` tokens.
  absl::StatusOr<PromptHits> AsPrompt(
      const SequenceState& sequence, int chunk,
      absl::FunctionRef<absl::StatusOr<PromptHits>(const SequencePrompt&)> use) const;

  RunnerShape shape_;
  int max_waiting_;
  BlockManager* blocks_;
  const CacheLimits* limits_;
  SequenceTable* table_;
  Preemptor* preemptor_;
  std::mt19937_64 seeds_;
  size_t num_put_off_ = 0;  // leading waiting sequences that await keys; each reserves a slot
  int64_t num_forks_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SCHEDULING_ADMISSION_H_
