// A decode loop around a StepRunner for callers with their own queue: sequences join and leave, and
// each Run() returns the tokens of one step.
//
//   REPRISE_ASSIGN_OR_RETURN(StepBuilder steps, StepBuilder::Create(*runner));
//   REPRISE_ASSIGN_OR_RETURN(const SlotId slot,
//                            steps.Join(prompt, {.sampling = {.temperature = 0.8f}}));
//   while (steps.num_sequences() > 0) {
//     REPRISE_ASSIGN_OR_RETURN(const absl::Span<const NewToken> step, steps.Run());
//     for (const NewToken& next : step) {
//       if (next.token == kEndOfText || next.is_last) {
//         Print(steps.tokens(next.slot));
//         REPRISE_RETURN_IF_ERROR(steps.Leave(next.slot));
//       }
//     }
//   }
//
// A builder owns the BlockManager and the memory of the batches. It splits prompts into chunks,
// skips tokens that the prefix cache holds, requests copies of blocks, and commits each token after
// the step that computed it. The caller decides which sequence joins when, and which sequence
// leaves if blocks run out. A step first serves all decoding sequences, then prompts in the order
// in which they joined. Scheduler (engine/scheduler.h) adds queues, priorities, preemption, drafts,
// encoder inputs and embeddings.
//
// Steps in flight. Run() keeps up to RunnerShape::max_steps_in_flight steps in flight: it launches
// until the runner is full, then awaits the oldest step. Callers that overlap other work with a
// step call Launch() and Await() instead. Tokens of a sequence that has left are dropped.
//
// Sequences. A sequence occupies its slot from Join() or Fork() to Leave(). Its states:
//   computing   each step has a row of it. Prompts wait while other rows use up max_num_tokens, and
//               appended tokens wait for the sequence's steps in flight
//   paused      from Pause() to Append(); no new step has a row of it
//   complete    max_length() of its tokens are cached; its last NewToken had `is_last`
//   failed      its step failed, or its logits left no token to choose; see failed_slots()
// Complete and failed sequences get no rows and must leave.
//
// Errors change nothing, except as stated at Launch() and Await():
//   InvalidArgument     the call cannot succeed: the prompt is empty or too long, an id is outside
//                       the vocabulary, the runner rejects the request, or the parent of a fork is
//                       complete
//   ResourceExhausted   all slots are taken, or the pool has too few blocks now; retry after a
//                       Leave()
//   NotFound            the slot has no sequence
//   FailedPrecondition  the sequence has failed; or too many steps or no step are in flight
//
// Thread safety: none; one owner. Lifetime: the runner must outlive the builder, and no other
// caller may launch steps on it. Cost: O(sequences) host work per step. Join(), Fork() and Append()
// allocate; steps that only decode do not.

#ifndef REPRISE_RUNNER_STEP_BUILDER_H_
#define REPRISE_RUNNER_STEP_BUILDER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/blocks/length_limits.h"
#include "reprise/cache/prefix/prefix_hash.h"
#include "reprise/cache/prefix/prefix_match.h"
#include "reprise/cache/tables/block_table_update.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/step_result.h"
#include "reprise/runner/step_runner.h"

namespace reprise {

struct StepBuilderOptions {
  // Whether prompts reuse the cached keys of earlier sequences with the same first tokens.
  PrefixReuse prefix_reuse = PrefixReuse::kOn;
  // kCopied: also reuses the keys of a block if only its first tokens are the same.
  PartialHits partial_hits = PartialHits::kNone;
  // Maximum number of prompt tokens per sequence and step. Larger values complete prompts sooner,
  // and delay the decodes of the same steps. 0: RunnerShape::max_num_tokens.
  int max_chunk = 0;
};

// Options of a sequence. Spans are read before Join() or Fork() returns.
struct JoinOptions {
  SamplingParams sampling = {};
  // Penalties, biases, log-probabilities and stages. The builder sets `slot`, `prompt` and
  // `output`.
  std::optional<LogitsRequest> logits = std::nullopt;
  // Inputs that determine keys and values in addition to the tokens. Sequences with different
  // inputs share no blocks.
  absl::Span<const ExtraKey> extra_keys = {};
};

// A token that a step has chosen.
struct NewToken {
  SlotId slot = {};
  int32_t token = 0;     // kNanRow if no token could be chosen: the sequence has failed
  int row = 0;           // its row in result()
  bool is_last = false;  // the sequence is complete or failed, and must leave
};

class StepBuilder {
 public:
  // Errors: InvalidArgument if `max_chunk` is negative; as BlockManager::Create().
  static absl::StatusOr<StepBuilder> Create(StepRunner& runner,
                                            const StepBuilderOptions& options = {});

  StepBuilder(StepBuilder&&) = default;
  StepBuilder& operator=(StepBuilder&&) = default;

  // ---- Sequences.

  // Adds a sequence in a free slot, with blocks for its prompt. For models with windows, only with
  // blocks for the prompt's first chunk.
  absl::StatusOr<SlotId> Join(absl::Span<const int32_t> prompt, const JoinOptions& options = {});

  // Adds a sequence with tokens(from) in a free slot, and shares the blocks of the tokens that have
  // been computed. The new sequence samples its own next token. `options.extra_keys` must be empty:
  // the new sequence has the extra keys of `from`.
  absl::StatusOr<SlotId> Fork(SlotId from, const JoinOptions& options = {});

  // Appends tokens to the sequence, such as the next turn of a chat, and ends a pause. If steps in
  // flight still generate tokens of the sequence, `tokens` follow these. `tokens` may be empty.
  absl::Status Append(SlotId slot, absl::Span<const int32_t> tokens);

  // Keeps the sequence in its slot without rows until Append(). Steps in flight still add their
  // tokens.
  absl::Status Pause(SlotId slot);

  // Removes a sequence, and releases its blocks and its slot. With PrefixReuse::kOn, later prompts
  // can reuse its computed tokens from the prefix cache.
  absl::Status Leave(SlotId slot);

  // Calls Leave() for all failed_slots().
  void LeaveFailed();

  // ---- Steps.

  // Launches until the runner is full, then awaits the oldest step and returns its new tokens.
  // Returns an empty span for a step that samples no token, or if no sequence has tokens to
  // compute. Valid until the next call of Run() or Await(). Errors: as Launch() if no step is in
  // flight; as Await().
  absl::StatusOr<absl::Span<const NewToken>> Run();

  // Launches a step with one row per computing sequence, as max_num_tokens allows. Returns false,
  // and launches nothing, if no sequence has tokens to compute. Errors: ResourceExhausted if the
  // pool has too few blocks for the step; call Leave() for any sequence. If the runner returns an
  // error, the step is rejected, and the next Launch() builds it again. However, sequences that
  // need a copy of a block in this step fail (only with PartialHits::kCopied or after Fork()).
  absl::StatusOr<bool> Launch();

  // Blocks until the oldest step has been computed, and returns its new tokens. Valid until the
  // next call of Run() or Await(). Errors: as StepRunner::Await(). The sequences of the step's rows
  // have then failed. All other sequences continue unless the runner's status() is an error.
  absl::StatusOr<absl::Span<const NewToken>> Await();

  // Returns the number of steps launched and not awaited.
  int num_in_flight() const { return num_in_flight_; }

  // Returns the result of the step that was awaited last, with log-probabilities and the graph
  // decision. Valid as stated by StepRunner::Await(). REQUIRES: a step has been awaited without
  // error.
  const StepResult& result() const { return result_; }

  // ---- State.

  // Returns whether the slot has a sequence, including failed sequences. False if the slot is out
  // of range.
  bool contains(SlotId slot) const;
  // Returns the number of sequences that have joined and not left.
  int num_sequences() const { return static_cast<int>(running_.size()); }
  // Returns the sequences that have failed and not left. Valid until the next call.
  absl::Span<const SlotId> failed_slots() const { return failed_; }
  // Returns the prompt, appended and generated tokens that are known, in order, without appended
  // tokens that wait for steps in flight. Valid until the next call of Run(), Await(), Append() or
  // Leave(). REQUIRES: contains(slot).
  absl::Span<const int32_t> tokens(SlotId slot) const;
  // Returns the number of tokens that Join() found in the cache, or that Fork() shares. REQUIRES:
  // contains(slot).
  int num_cached_tokens(SlotId slot) const;
  // Returns the maximum number of tokens per prompt, and of cached tokens per sequence: the
  // runner's max_seq_len, or fewer if the whole pool holds fewer.
  int max_length() const { return limits_.max_tokens; }
  // Returns the blocks of the sequences: numbers of blocks, and hits of the prefix cache.
  const BlockManager& blocks() const { return blocks_; }

 private:
  struct Sequence {
    std::vector<int32_t> tokens;    // known tokens; capacity for max_length() + 1
    std::vector<int32_t> appended;  // to be added after the tokens of rows in flight
    int num_prompt = 0;
    int num_drawn = 0;        // tokens that the sequence, or a fork's parent, has sampled
    int num_cached = 0;       // tokens that Join() found, or that a fork shares
    int given_end = 0;        // rows pass tokens from the host up to here
    int num_fed = 0;          // tokens whose rows have been launched
    int num_pending = 0;      // rows in flight whose tokens are not known yet
    int64_t id = 0;           // number of the join; 0: the slot is free
    bool has_joined = false;  // the runner has received the join
    bool is_paused = false;
    bool has_failed = false;
    SamplingParams sampling = {};
    std::optional<LogitsRequest> logits = std::nullopt;
    std::vector<LogitBias> biases = {};

    bool is_decoding() const { return num_fed >= given_end; }
  };
  struct Row {
    SlotId slot = {};
    int64_t id = 0;
    int first = 0;  // index of its first token
    int num_tokens = 0;
    bool samples = false;
  };
  struct Step {
    int64_t number = -1;  // the runner's step number
    std::vector<Row> rows;
  };

  StepBuilder(StepRunner& runner, const StepBuilderOptions& options, BlockManager blocks);

  Sequence& sequence(SlotId slot) { return sequences_[slot.value()]; }
  const Sequence& sequence(SlotId slot) const { return sequences_[slot.value()]; }
  absl::Status CheckTaken(SlotId slot) const;
  absl::Status CheckLive(SlotId slot) const;
  absl::Status CheckPrompt(absl::Span<const int32_t> prompt) const;
  absl::Status CheckOptions(const JoinOptions& options) const;
  absl::StatusOr<SlotId> FreeSlot() const;
  // Starts a sequence in the free `slot`. Its first `num_cached` tokens are cached.
  void Start(SlotId slot, absl::Span<const int32_t> tokens, int num_prompt, int num_cached,
             const JoinOptions& options);
  bool CanCompute(const Sequence& sequence) const;
  // Appends a row of `num_tokens` tokens to `step`, and the blocks that it needs to appends_.
  void AddRow(SlotId slot, int num_tokens, Step& step);
  void PlanRows(Step& step);
  void AddJoins();
  // Called if the runner has rejected the batch.
  void Refused();
  void Fail(SlotId slot);
  void TakeAppended(Sequence& sequence);
  // Completes `row` after its step, which sampled `token` if the row samples.
  absl::Status Complete(const Row& row, int row_index, int32_t token);
  bool IsLive(const Row& row) const;

  StepRunner* runner_;
  BlockManager blocks_;
  int max_chunk_ = 0;
  LengthLimits limits_;
  int64_t num_joins_ = 0;
  std::vector<Sequence> sequences_;  // by slot
  std::vector<SlotId> free_slots_;   // the next free slot is at the back
  std::vector<SlotId> running_;      // occupied slots, in the order of their joins
  std::vector<SlotId> failed_;
  // Ring of the steps in flight. The oldest step is at index first_step_.
  std::vector<Step> steps_;
  int first_step_ = 0;
  int num_in_flight_ = 0;
  // The batch. Leaves and updates are kept until the runner has accepted them.
  std::vector<SlotId> leaves_;
  std::vector<SlotJoin> joins_;
  std::vector<LogitsRequest> requests_;
  std::vector<BlockTableUpdate> updates_;
  std::vector<BlockCopy> copies_;
  std::vector<ScheduledRow> rows_;
  std::vector<SlotAppend> appends_;
  std::vector<NewToken> new_tokens_;
  StepResult result_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_BUILDER_H_
