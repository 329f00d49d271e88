// Continuous batching: chooses the sequences and tokens of each step.
//
// Sequences wait, run and finish. Each batch holds every running sequence that has a token to
// compute, then as much of waiting prompts as the token budget allows. The slot of a finished
// sequence goes to the next waiting sequence. Schedule() may be called again before the tokens of
// earlier batches are known, because the device feeds sampled tokens to itself.
//
//   auto scheduler = *Scheduler::Create({.shape = runner.shape(), .policy = {...}});
//   scheduler->Add({.prompt = {1, 2, 3}, .max_new_tokens = 16});
//   while (scheduler->has_work()) {
//     const ScheduledBatch& batch = scheduler->Schedule();  // launch it ...
//     scheduler->Commit(result, events);   // ... and hand back its result, oldest batch first
//   }
//
// The scheduler keeps the order of the phases. Five parts do the work, and their headers in
// engine/scheduling/ state the rules:
//
//   SequenceTable      requests, waiting and running sequences, slots     (sequence_table.h)
//   Admission          request checks, prefix hits, forks, swaps in       (admission.h)
//   Preemptor          victims, swap or recompute                         (preemptor.h)
//   DraftPlanner       number of drafts, acceptance, costs                (draft_planner.h)
//   BatchInProgress    rows, changes of slots and budgets of a batch      (batch_in_progress.h)
//
// sequence_state.h has the states of a sequence, open_batches.h the batches in flight, row_logits.h
// masks and log-probabilities, and cache_limits.h the lengths that the cache can hold.
//
// Order. Schedule() adds a decode for each running sequence, then chunks of the prompts of running
// sequences, then admits waiting sequences, then adds drafts. If layers have a window, blocks that
// left it are freed when batches are committed. A prompt then gets its blocks chunk by chunk, and a
// chunk that finds none waits while other work can free blocks.
//
// Failures. A failed step (CommitFailed) and a row without a token end the sequences concerned, and
// a batch that the runner refused (AbandonLaunch) ends all running sequences, with
// FinishReason::kError. Tokens that they did not compute are never found as a prefix. All other
// sequences continue. A matcher or masker that throws ends its sequence the same way: in Commit(),
// without the token that it was given; or, if TokenMasker::Fill() threw in Schedule(), in the next
// Commit() of a row of the sequence.
//
// Invariants, checked by CheckInvariants() together with the invariants of each part:
//   1. The block manager holds, for every running sequence, blocks for all tokens scheduled so far,
//      and counts the tokens of committed batches as committed. It holds no other blocks.
//   2. Batches are committed in the order in which they were scheduled.
//   3. RequestState::num_open_rows is the number of rows of its sequences in open batches.
//
// Thread safety: none; one owner. Host only; no heap allocation in the steady state.

#ifndef REPRISE_ENGINE_SCHEDULER_H_
#define REPRISE_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/blocks/swap_store.h"
#include "reprise/cache/prefix/prefix_events.h"
#include "reprise/cache/prefix/prefix_index.h"
#include "reprise/engine/draft_costs.h"
#include "reprise/engine/preemption_rule.h"
#include "reprise/engine/request.h"
#include "reprise/engine/scheduler_policy.h"
#include "reprise/engine/speculation_policy.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/step_result.h"

namespace reprise {

class Admission;
class BatchInProgress;
class CacheLimits;
class DraftPlanner;
class OpenBatches;
class Preemptor;
class SequenceTable;
enum class BatchRowKind : int8_t;
struct OpenRow;
struct SequenceState;

// The runner that a scheduler makes batches for, and how the scheduler chooses.
struct SchedulerOptions {
  RunnerShape shape;
  SchedulerPolicy policy = {};
};

class Scheduler {
 public:
  // Errors: InvalidArgument naming the field.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(const SchedulerOptions& given);
  ~Scheduler();

  // Queues a request. Errors, with nothing changed:
  //   InvalidArgument    the request can never run: an empty prompt, max_new_tokens < 1 without
  //                      prompt log-probabilities, a prompt longer than max_seq_len or than the
  //                      whole cache; an encoder input that is too long, or none expected;
  //                      num_sequences outside [1, max_num_seqs] or above max_waiting; max_drafts
  //                      below -1; sampling that CheckSampling() refuses; a masker without
  //                      mask_words; embeddings or positions that CheckPromptContent() refuses
  //                      (engine/prompt_content.h)
  //   ResourceExhausted  more than max_waiting sequences would wait; retry after some have been
  //                      admitted
  //   Internal           new_stop_matcher or new_token_masker threw (std::bad_alloc:
  //                      ResourceExhausted)
  // REQUIRES: the runner accepts the request's ToLogitsRequest().
  absl::StatusOr<SequenceId> Add(Request request);

  // Ends the request's unfinished sequences with an event kCancelled each, their last event.
  // Errors: NotFound if no sequence of the request is unfinished.
  absl::Status Cancel(SequenceId id, std::vector<TokenEvent>& events);

  // Ends the sequences whose deadline is `now` or earlier with an event kDeadline each. Call it
  // before Schedule(). O(1) unless a deadline has passed.
  void EndExpired(absl::Time now, std::vector<TokenEvent>& events);

  // Whether a sequence is unfinished or a batch is open.
  bool has_work() const;

  // Number of open batches: scheduled, and not committed.
  int num_in_flight() const;

  // Whether Schedule() may be called: fewer than max_steps_in_flight batches are open.
  bool can_schedule() const { return num_in_flight() < options_.shape.max_steps_in_flight; }

  // Returns the next batch, valid until the next call of any method. The batch is empty if every
  // sequence waits for a commit: do not launch or commit it then. REQUIRES: can_schedule().
  const ScheduledBatch& Schedule();

  // Commits the result of the oldest open batch, and appends each sequence's new tokens to
  // `events`. Ignores the tokens of rows with RowOutput::kNone. A negative token, such as kNanRow,
  // or a log-probability that is NaN ends the row's sequence with kError; the prefix index forgets
  // all keys of that sequence. REQUIRES: num_in_flight() > 0; one token per row of that batch; 1 to
  // 1 + drafts new tokens of a row with drafts and a token; the log-probabilities that its rows
  // requested.
  void Commit(const StepResult& result, std::vector<TokenEvent>& events);
  // The same for a batch without log-probabilities and drafts.
  void Commit(absl::Span<const int32_t> tokens, std::vector<TokenEvent>& events) {
    Commit(StepResult{.tokens = tokens}, events);
  }

  // Records the time that the step of the oldest open batch took, from its launch or from the end
  // of the previous step, whichever was later: for SpeculationPolicy::measures_steps. Ignores steps
  // with prefill chunks of several tokens or catch-up rows. Call it before the batch's Commit().
  // REQUIRES: as Commit().
  void ObserveStep(absl::Duration duration, const StepResult& result);

  // Ends the sequences of the oldest open batch with kError, because its step failed with `cause`.
  // REQUIRES: num_in_flight() > 0, !cause.ok().
  void CommitFailed(const absl::Status& cause, std::vector<TokenEvent>& events);

  // Takes back the batch that Schedule() has just returned, because the runner refused it with
  // `cause`. Ends all running sequences with kError; waiting sequences continue to wait. Earlier
  // batches stay open. REQUIRES: no other call since Schedule(), whose batch had rows; !cause.ok().
  void AbandonLaunch(const absl::Status& cause, std::vector<TokenEvent>& events);

  // Ends all sequences with kError and forgets all open batches, because the runner can run no more
  // steps. has_work() is false afterwards. REQUIRES: !cause.ok().
  void EndAll(const absl::Status& cause, std::vector<TokenEvent>& events);

  // Maximum number of tokens of a sequence whose keys can be cached: max_seq_len, or less if a
  // sequence that has the whole pool is shorter.
  int max_cached_tokens() const;

  int num_waiting() const;
  int num_running() const;
  int64_t num_preemptions() const;  // by either means
  const SwapStatistics& swap_statistics() const;
  const SpeculationStatistics& speculation_statistics() const;
  const DraftCosts& draft_costs() const;
  // Null without host blocks.
  const SwapStore* swap_store() const;
  // Sequences that began with the forked blocks of another sequence of their request.
  int64_t num_forks() const;
  // Counts of lookups, and of tokens requested and found. A preempted sequence that is recomputed
  // counts again.
  PrefixStatistics prefix_statistics() const { return blocks_.prefix_cache().index().statistics(); }
  // Returns the prefixes that were cached or evicted since the last call, for a router that sends
  // requests to the process with their prefix (cache/prefix/prefix_events.h). Valid until the next
  // call.
  PrefixEvents TakePrefixEvents() { return blocks_.TakePrefixEvents(); }
  // Makes the prefix index forget all content: call it after the weights changed. Running sequences
  // keep their keys. O(blocks).
  void ForgetPrefixes() { blocks_.ForgetPrefixes(); }
  const BlockManager& blocks() const { return blocks_; }
  // As given, with all defaults filled in.
  const SchedulerOptions& options() const { return options_; }

  void CheckInvariants() const;

 private:
  Scheduler(const SchedulerOptions& options, BlockManager blocks);

  // ---- Rows of a batch (scheduler.cc).
  // Adds a running sequence's next token, if it has one to compute.
  void ScheduleDecode(SequenceState& sequence);
  // Adds as much of a running sequence's prompt as the budget and the blocks allow.
  void SchedulePrefill(SequenceState& sequence);
  void AdmitWaiting();
  // Adds a row of the sequence's next tokens. Empty `tokens`: the token that the device sampled
  // last.
  void AddRow(SequenceState& sequence, BatchRowKind kind, absl::Span<const int32_t> tokens);

  // ---- The result of a step (scheduler_commit.cc).
  // Calls `commit` for each row of a batch that is no longer open, unless the row is discarded.
  void Close(std::vector<OpenRow> batch,
             absl::FunctionRef<void(const OpenRow& row, int row_idx)> commit);
  void CommitRow(const OpenRow& row, int row_idx, const StepResult& result,
                 std::vector<TokenEvent>& events);
  void CommitDrafts(OpenRow row, int row_idx, const StepResult& result,
                    std::vector<TokenEvent>& events);
  // Takes a running sequence's next token from a row; `sampled` unless the token is forced. Returns
  // false if the sequence has ended.
  bool TakeToken(const OpenRow& row, int row_idx, int32_t sampled, const StepResult& result,
                 std::vector<TokenEvent>& events);
  // Ends a running sequence whose logits, and perhaps keys, are broken.
  void EndBroken(SequenceState& sequence, std::vector<TokenEvent>& events);
  // Commits the keys of a running sequence's next tokens.
  void CommitTokens(const SequenceState& sequence, int num_tokens);
  // Returns why the sequence ends with `token`, or kNone. Leaves out matchers and maskers.
  FinishReason ReasonToFinish(const SequenceState& sequence, int32_t token) const;

  // ---- The end of a sequence (scheduler_end.cc).
  // Ends an unfinished sequence without a token.
  void End(SequenceState& sequence, FinishReason reason, const absl::Status& error,
           std::vector<TokenEvent>& events);
  // Ends an unfinished sequence, and forgets its request if that is done.
  void EndAndForget(SequenceState& sequence, FinishReason reason, const absl::Status& error,
                    std::vector<TokenEvent>& events);
  // Takes away a running sequence's slot and blocks.
  void LeaveSlot(SequenceState& sequence);

  SchedulerOptions options_;
  BlockManager blocks_;
  absl::Time next_deadline_ = absl::InfiniteFuture();  // at most the earliest deadline
  std::unique_ptr<CacheLimits> limits_;                // of blocks_
  std::unique_ptr<SequenceTable> table_;
  std::unique_ptr<BatchInProgress> batch_;
  std::unique_ptr<OpenBatches> open_;
  std::unique_ptr<Preemptor> preemptor_;
  std::unique_ptr<DraftPlanner> drafts_;
  std::unique_ptr<Admission> admission_;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SCHEDULER_H_
