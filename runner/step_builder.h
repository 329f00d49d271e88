// The loop around a StepRunner for callers with their own queue: sequences join and leave, and each
// Run() computes one step of all of them.
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
// A builder owns the BlockManager and the memory of the batches. It cuts prompts into chunks, skips
// the tokens that the prefix cache has, requests the copies of blocks, and commits each token after
// the step that computed it. A policy remains the caller's: which sequence joins when, and which
// sequence leaves if blocks run out. A step serves all decoding sequences first, and then prompts in
// the order in which they joined. Scheduler (engine/scheduler.h) adds queues, priorities,
// preemption, drafts, inputs of encoders and embeddings.
//
// Steps in flight. Run() keeps up to RunnerShape::max_steps_in_flight steps in flight: it launches
// until the runner is full, and awaits the oldest step. Callers with work to do meanwhile call
// Launch() and Await() instead. Tokens of a sequence that has left are dropped.
//
// Sequences. A sequence lives in its slot from Join() or Fork() to Leave().
//   computing   each step has a row of it; prompts wait while other rows use up max_num_tokens
//   paused      from Pause() to Append(); no step has a row of it
//   complete    it has max_length() tokens in the cache; its last NewToken had `is_last`
//   failed      its step failed, or its logits left no token to choose; see failed_slots()
// Complete and failed sequences get no rows: they must leave.
//
// Errors change nothing, except as stated at Launch() and Await():
//   InvalidArgument     the call can never succeed: an empty or too long prompt, an id outside the
//                       vocabulary, a request that the runner refuses
//   ResourceExhausted   all slots are taken, or the pool has too few blocks now; retry after a
//                       Leave()
//   NotFound            no sequence in the slot
//   FailedPrecondition  the sequence failed; or too many or no steps are in flight
//
// Thread safety: none; one owner. Lifetime: the runner must outlive the builder, and no other caller
// may launch steps on it. Cost: O(rows) host work per step. Join(), Fork() and Append() allocate;
// steps that only decode do not.

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
  // kCopied: also the keys of a block whose first tokens only are the same.
  PartialHits partial_hits = PartialHits::kNone;
  // Maximum number of prompt tokens per sequence and step. Larger values end prompts sooner and
  // delay the decodes of the same steps. 0: RunnerShape::max_num_tokens.
  int max_chunk = 0;
};

// Options of a sequence. Spans are read before the call that takes them returns.
struct JoinOptions {
  SamplingParams sampling = {};
  // Penalties, biases, log-probabilities and stages. `slot`, `prompt` and `output` are filled in.
  std::optional<LogitsRequest> logits = std::nullopt;
  // Inputs that, like the tokens, determine keys and values. Sequences with different inputs share
  // no blocks.
  absl::Span<const ExtraKey> extra_keys = {};
};

// A token that a step has chosen.
struct NewToken {
  SlotId slot = {};
  int32_t token = 0;     // kNanRow if the logits left nothing to choose: the sequence has failed
  int row = 0;           // its row in result()
  bool is_last = false;  // the sequence is complete or failed, and must leave
};

class StepBuilder {
 public:
  // Errors: InvalidArgument if `max_chunk` is negative.
  static absl::StatusOr<StepBuilder> Create(StepRunner& runner,
                                            const StepBuilderOptions& options = {});

  StepBuilder(StepBuilder&&) = default;
  StepBuilder& operator=(StepBuilder&&) = default;

  // ---- Sequences.

  // Puts a sequence into a free slot, with blocks for its prompt. For models with windows: with
  // blocks for the prompt's first chunk.
  absl::StatusOr<SlotId> Join(absl::Span<const int32_t> prompt, const JoinOptions& options = {});

  // Puts into a free slot a sequence with the tokens(from), and shares the blocks of the tokens that
  // have been computed. It draws its own next token. `options.extra_keys` must be empty: the new
  // sequence has the extra keys of `from`.
  absl::StatusOr<SlotId> Fork(SlotId from, const JoinOptions& options = {});

  // Appends tokens to the sequence, such as the next turn of a chat, and ends a pause. If steps in
  // flight still generate tokens of the sequence, `tokens` follow these. `tokens` may be empty.
  absl::Status Append(SlotId slot, absl::Span<const int32_t> tokens);

  // Keeps the sequence in its slot without rows until Append(). Tokens of steps in flight still come.
  absl::Status Pause(SlotId slot);

  // Removes a sequence and releases its blocks and its slot. Prompts of later sequences find its
  // computed tokens in the cache.
  absl::Status Leave(SlotId slot);

  // Leave() of all failed_slots().
  void LeaveFailed();

  // ---- Steps.

  // Launches until the runner is full, and awaits the oldest step. Empty if no sequence has anything
  // to compute, and for a step of prompt chunks. Valid until the next call of Run() or Await().
  // Errors: the error of Launch() if no step is in flight, and the error of Await().
  absl::StatusOr<absl::Span<const NewToken>> Run();

  // Launches a step with a row of each computing sequence. Returns false, and launches nothing, if
  // no sequence has tokens to compute. Errors: ResourceExhausted if the pool has too few blocks for
  // the step; Leave() of any sequence helps. An error of the runner refuses the step, and the next
  // Launch() builds it again; but sequences that need a copy of a block in this step fail (only
  // with PartialHits::kCopied or after Fork()).
  absl::StatusOr<bool> Launch();

  // Blocks until the oldest step has been computed, and returns its new tokens. Valid until the next
  // call of Run() or Await().
  // Errors: those of the runner's Await(): the sequences of the step's rows have failed, and all
  // others go on unless the runner's status() is an error.
  absl::StatusOr<absl::Span<const NewToken>> Await();

  // Number of steps launched and not awaited.
  int num_in_flight() const { return num_in_flight_; }

  // Result of the step that was awaited last, with log-probabilities and the graph decision. Valid
  // as StepRunner::Await() says. REQUIRES: a step has been awaited without error.
  const StepResult& result() const { return result_; }

  // ---- State.

  // Whether the slot has a sequence, failed ones included. False for slots out of range.
  bool contains(SlotId slot) const;
  // Number of sequences that have joined and not left.
  int num_sequences() const { return static_cast<int>(running_.size()); }
  // Sequences that failed and have not left. Valid until the next call.
  absl::Span<const SlotId> failed_slots() const { return failed_; }
  // Prompt, appended and generated tokens that are known, in order. Valid until the next call of
  // Run(), Await(), Append() or Leave(). REQUIRES: contains(slot).
  absl::Span<const int32_t> tokens(SlotId slot) const;
  // Number of the prompt's tokens that Join() found in the cache. REQUIRES: contains(slot).
  int num_cached_tokens(SlotId slot) const;
  // Maximum number of tokens per prompt, and of cached tokens per sequence: the runner's
  // max_seq_len, or fewer if the whole pool holds fewer.
  int max_length() const { return limits_.max_tokens; }
  // The blocks of the sequences: counts of blocks, and hits of the prefix cache.
  const BlockManager& blocks() const { return blocks_; }

 private:
  struct Sequence {
    std::vector<int32_t> tokens;    // known ones; capacity for max_length() + 1
    std::vector<int32_t> appended;  // follow the tokens of rows in flight
    int num_prompt = 0;
    int num_drawn = 0;        // tokens that the sequence, or a fork's parent, has sampled
    int num_cached = 0;       // tokens that Join() found, or that a fork shares
    int given_end = 0;        // rows bring tokens from the host up to here
    int num_fed = 0;          // tokens whose rows have been launched
    int num_pending = 0;      // rows in flight whose tokens are to come
    int64_t id = 0;           // counts joins; 0: the slot is free
    bool has_joined = false;  // the runner has the join
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
    int64_t number = -1;  // the runner's
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
  // The free `slot` becomes a sequence whose first `num_cached` tokens are cached.
  void Start(SlotId slot, absl::Span<const int32_t> tokens, int num_prompt, int num_cached,
             const JoinOptions& options);
  bool CanCompute(const Sequence& sequence) const;
  // Appends a row of `num_tokens` tokens to `step`, and the room that it needs to appends_.
  void AddRow(SlotId slot, int num_tokens, Step& step);
  void PlanRows(Step& step);
  void AddJoins();
  // The runner has refused the batch.
  void Refused();
  void Fail(SlotId slot);
  void TakeAppended(Sequence& sequence);
  // The step of `row` is computed, and chose `token` if the row samples.
  absl::Status Complete(const Row& row, int row_index, int32_t token);
  bool IsLive(const Row& row) const;

  StepRunner* runner_;
  BlockManager blocks_;
  int max_chunk_ = 0;
  LengthLimits limits_;
  int64_t num_joins_ = 0;
  std::vector<Sequence> sequences_;  // by slot
  std::vector<SlotId> free_slots_;   // the next one is at the back
  std::vector<SlotId> running_;      // taken slots, in the order of their joins
  std::vector<SlotId> failed_;
  // Ring of the steps in flight. The oldest step is at index first_step_.
  std::vector<Step> steps_;
  int first_step_ = 0;
  int num_in_flight_ = 0;
  // The batch. Leaves, updates and copies stay until a runner has taken them.
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
