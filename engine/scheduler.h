// Continuous batching: which sequences take part in the next step, and with which tokens.
//
// Sequences wait, run and finish. Each step holds every running sequence that has a token to
// compute, decodes first, then as much of waiting prompts as the token budget allows; a finished
// sequence's slot goes to the next waiting one. The host may be some steps behind the device:
// Schedule() may be called again before the tokens of earlier batches are known, since the device
// feeds sampled tokens to itself.
//
//   Scheduler scheduler = *Scheduler::Create({.max_num_seqs = 8, ...});
//   scheduler.Add({.prompt = {1, 2, 3}, .max_new_tokens = 16});
//   while (scheduler.has_work()) {
//     const ScheduledBatch& batch = scheduler.Schedule();   // launch it ...
//     scheduler.Commit(tokens, events);   // ... and hand back its tokens, oldest batch first
//   }
//
// Life of a sequence:
//
//   state     slot, blocks   leaves by
//   waiting   no; perhaps    admission -> running; Cancel, EndExpired, EndAll -> finished
//             host blocks
//   running   yes            its last token, Cancel, EndExpired, a failure -> finished;
//                            preemption -> waiting
//   finished  no             forgotten when no batch in flight has a row of it
//
// A sequence is preempted if blocks run out. Its blocks are freed, and its tokens are computed
// again later; or their content is moved to host memory and back (ScheduledBatch::swap_outs,
// swap_ins), where that costs less time (engine/preemption_rule.h) and host blocks are free. Its
// text stays the same: the sampling counter continues where it was. Only committed tokens are
// moved. A row of a batch in flight whose sequence has left its slot meanwhile is discarded: its
// token is computed again. Host blocks are freed when the sequence returns or ends.
//
// Order. Waiting sequences are admitted by priority, then in the order in which they were added.
// The one with the lowest priority is preempted first, of several the one admitted last. A
// sequence that waits does not take the place of a running one, and is not admitted while a running
// one finds no blocks for its next chunk.
//
// Prefix reuse. Computed keys stay in the cache until their blocks are needed for something else: a
// prompt, or a preempted sequence, begins after its cached prefix (SlotJoin::seq_len). Only keys of
// committed batches are found. If a running sequence of no lower priority is computing full blocks
// that a waiting one begins with, the waiting one is admitted when they are committed; a slot is
// kept for it. With
// partial hits a prompt also reuses the next block's first tokens, as far as they are equal: in a
// copy of it, made before the step (ScheduledBatch::copies). Requests with different salts share
// nothing.
//
// Several sequences of one request. The first to be admitted computes the prompt. The others wait
// for it, and for its encoder's pass to be committed, then fork its blocks and compute the last
// prompt token again, each for its own logits.
// One that is admitted when none of the others runs any more begins like any prompt.
//
// Failures. A step whose tokens never came (CommitFailed), a row without a token and a batch that
// the runner refused (AbandonLaunch) end the sequences concerned with FinishReason::kError; what
// they were to compute is never found as a prefix, and all others continue.
//
// Embeddings. A prompt's tokens may have embeddings in place of those of their ids: the rows of
// those that a chunk feeds go with its row. A block's key in the prefix index depends on them, so
// placeholders of different images are different, and those of equal images equal.
//
// Maskers. A sequence with a TokenMasker has a row only when all its tokens are known, and the row
// brings the mask that follows them; others do not wait for it.
//
// Scoring. A prompt whose log-probabilities are wanted is computed from its first token whose logits
// have not come yet. Its chunks, and those of forced tokens, ask for the logits of all their tokens
// (RowLogits::kAll), as far as max_earlier_logits allows.
//
// Drafts. A decode's row has drafts where the policy and the sequence's accepted drafts so far are
// for it (engine/speculation_policy.h), also beside chunks of prompts: it brings 1 to 1 + drafts
// tokens. Until its batch is committed the sequence's length is known from above. It has room
// for all of them; that of rejected ones is kept for its next row. Drafts get the tokens and blocks
// that the batch's rows leave, and preempt no one. Rows of sequences with a masker, with forced
// tokens, or which ask for penalties, biases, stages or log-probabilities have none. A drafter with keys
// that is behind a sequence by more tokens than a row shows it gets rows with the most drafts until it
// has seen all, unless the sequence would end before, or accepts too little: such rows bring a token
// each, and count neither for lengths nor for times.
//
// Predictions. A sequence whose request says what its text will probably be has drafts of that in place of
// the drafter's, as long as the end of its text is found in it: a chain, also beside trees. Tokens in
// flight are taken to be as predicted.
//
// Encoders. The input of a sequence is encoded in the step that admits it, unless the keys of the
// same input are in the cache, or return from the host.
//
// Groups. With layers of several kinds the blocks that left a window are given back when batches
// are committed, and prompts get their blocks chunk by chunk; a chunk that finds none waits.
//
// Invariants, checked by CheckInvariants():
//   1. Every running sequence has its own slot; waiting ones have none and hold no blocks.
//   2. The block manager holds, for every running sequence, blocks for all tokens scheduled so far,
//      and counts those of committed batches as committed; it holds no others.
//   3. Batches are committed in the order they were scheduled; at most max_steps_in_flight are
//      open.
//   4. Running sequences are in order of priority, those of one priority in order of admission;
//      waiting ones in order of priority, then of Add().
//   5. The sequences in the swap store are waiting ones, each stored once.
//   6. Each request has as many open rows as its sequences have in open batches, and is forgotten
//      when all its sequences have finished and it has none.
//
// Thread safety: none; one owner. Host only; no heap allocation in the steady state.

#ifndef ENGINE_SCHEDULER_H_
#define ENGINE_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "attention/metadata/placeholder_map.h"
#include "base/ids.h"
#include "cache/block_copy.h"
#include "cache/blocks/block_manager.h"
#include "cache/blocks/prefix_cache.h"
#include "cache/blocks/swap_store.h"
#include "cache/kv_group.h"
#include "cache/prefix/prefix_events.h"
#include "cache/prefix/prefix_hash.h"
#include "cache/prefix/prefix_index.h"
#include "cache/prefix/prefix_match.h"
#include "engine/draft_costs.h"
#include "engine/preemption_rule.h"
#include "engine/request.h"
#include "engine/speculation/drafted_blocks.h"
#include "engine/speculation_policy.h"
#include "engine/step_output.h"
#include "runner/sampling/logits_request.h"
#include "runner/slots/scheduled_batch.h"

namespace reprise {

struct SchedulerOptions {
  int max_num_seqs = 0;    // rows of a step, and slots
  int max_num_tokens = 0;  // of a step; at least max_num_seqs
  int prefill_chunk = 0;   // the most prompt tokens of one row in a step; 0: max_num_tokens
  // The most prompt tokens, over all rows, of a step that has decodes: it bounds how long a decode
  // waits for its next token. 0: what max_num_tokens leaves.
  int max_prefill_tokens_while_decoding = 0;
  int max_seq_len = 0;  // tokens of a sequence whose keys are cached
  int max_steps_in_flight = 1;
  int max_waiting = 0;  // sequences that may wait before Add() refuses; 0: any number
  int num_blocks = 0;   // null block included
  int block_size = 16;
  std::vector<KvGroupSpec> groups = {};  // of the model's layers; none: one full group
  // The longest input of the model's encoder, and the most tokens that one step encodes. 0: the
  // model has no encoder.
  int max_encoder_tokens = 0;
  int max_encoder_step_tokens = 0;
  // Of the model's positions: how many dimensions, and what all are below. The latter is read only
  // with several dimensions, where positions may differ from a token's index.
  int num_position_dims = 1;
  int max_position = 0;
  // Words of a mask of allowed tokens, MaskWords(vocab_size). 0: requests cannot have maskers.
  int mask_words = 0;
  // Tokens of a step, other than the last of each row, whose logits the runner gives. 0: prompts are
  // scored, and forced tokens are fed, one token a step.
  int max_earlier_logits = 0;
  // Drafts of decodes. num_drafts: no more than the runner serves.
  SpeculationPolicy speculation = {};
  // Of drafts that are proposed as trees, level by level: entry i is the number of drafts in the first
  // i + 1 levels. A sequence accepts one of each level at most, so limits and lengths count levels
  // (num_drafts <= the number of entries), while room in the cache and the step is for all. Empty:
  // drafts are chains.
  std::vector<int> level_drafts = {};
  // Levels that the runner has graphs for, ascending: steps with fewer take as long. Read with
  // SpeculationPolicy::measures_steps, which chooses among them and num_drafts. Empty: 1, 2, 4, ...
  std::vector<int> graph_levels = {};
  // Whether the runner proposes drafts. Else those of Request::predicted_tokens are all there are.
  bool has_drafter = true;
  DrafterKeys drafter_keys = DrafterKeys::kNone;  // of what proposes the drafts
  // Whether sequences reuse cached prefixes. The generated texts are the same as without it,
  // provided that the kernels give the same keys for other lengths of chunks.
  PrefixReuse prefix_reuse = PrefixReuse::kOn;
  // kCopied: a cached prefix may end within a block, which saves up to block_size - 1 tokens of a
  // prompt for a copy of a block. The scheduler then keeps the cache's tokens, 4 bytes each.
  PartialHits partial_hits = PartialHits::kNone;
  // Of the hashes of prefixes. nullopt: random. Processes behind one router have the same, which no
  // client may know.
  std::optional<PrefixSeed> prefix_seed = std::nullopt;
  // Events that TakePrefixEvents() gives at most; 0: none. 96 bytes each.
  int64_t num_prefix_events = 0;
  // Host blocks of the runner, host block 0 included; 0: preempted sequences are always computed
  // again. bytes_per_block: what a swap of one moves, for the costs.
  int num_swap_blocks = 0;
  int64_t bytes_per_block = 0;
  PreemptionMode preemption = PreemptionMode::kAuto;
  PreemptionCosts preemption_costs = H200PreemptionCosts();
  // Of the generator that draws seeds for requests without one. nullopt: from the operating system.
  std::optional<uint64_t> seed = std::nullopt;
};

// What preemptions have moved to the host and back.
struct SwapStatistics {
  int64_t num_swap_outs = 0;  // preemptions by a swap; the others recompute
  int64_t num_swap_ins = 0;   // returns by a swap
  int64_t num_blocks_out = 0;
  int64_t num_blocks_in = 0;
};

class Scheduler {
 public:
  // Errors: InvalidArgument naming the field.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(const SchedulerOptions& options);
  ~Scheduler();

  // Queues a request. Errors, with nothing changed:
  //   InvalidArgument    waiting would never help: an empty prompt, max_new_tokens < 1 without
  //                      prompt log-probabilities, a prompt longer than max_seq_len or than the
  //                      whole cache; an encoder input that is too long, or none expected;
  //                      num_sequences outside [1, max_num_seqs]; sampling that CheckSampling()
  //                      refuses; a masker without mask_words; embeddings or positions that
  //                      CheckPromptContent() refuses (engine/prompt_content.h)
  //   ResourceExhausted  max_waiting sequences wait; retry after some have been admitted
  // What ToLogitsRequest() makes of the request must be one that the runner accepts.
  absl::StatusOr<SequenceId> Add(Request request);

  // Ends the request's sequences, waiting or running, with an event kCancelled each. They get no
  // other event. Errors: NotFound if none is unfinished.
  absl::Status Cancel(SequenceId id, std::vector<TokenEvent>& events);

  // Ends the sequences whose deadline is `now` or earlier with an event kDeadline each. Call it
  // before Schedule(). O(1) unless a deadline has passed.
  void EndExpired(absl::Time now, std::vector<TokenEvent>& events);

  // Whether any sequence is unfinished or any batch uncommitted.
  bool has_work() const;

  // Batches scheduled and not committed.
  int num_in_flight() const { return static_cast<int>(open_.size()); }

  // Whether Schedule() may be called: fewer than max_steps_in_flight batches are open.
  bool can_schedule() const { return num_in_flight() < options_.max_steps_in_flight; }

  // The next batch, valid until the next call of any method. It is empty if every sequence waits
  // for a commit: then there is nothing to launch or to commit. REQUIRES: can_schedule().
  const ScheduledBatch& Schedule();

  // What the oldest open batch has computed; tokens are ignored where RowOutput::kNone. Appends each
  // sequence's new tokens to `events`. A negative token, such as kNanRow, and a log-probability that
  // is NaN end their sequence with kError; nothing that it has computed is found as a prefix from
  // then on. REQUIRES: num_in_flight() > 0, tokens.size() == rows of that batch, 1 to 1 + drafts new
  // tokens of a row with drafts and a token, and the log-probabilities that its rows asked for.
  void Commit(const StepOutput& output, std::vector<TokenEvent>& events);
  // The same for batches that asked for none, and have no drafts.
  void Commit(absl::Span<const int32_t> tokens, std::vector<TokenEvent>& events) {
    Commit(StepOutput{.tokens = tokens}, events);
  }

  // What the step of the oldest open batch took, from its launch or from the end of the step before
  // it, whichever was later: for SpeculationPolicy::measures_steps. Before its Commit(). Steps with
  // chunks of prompts are not counted. REQUIRES: as Commit().
  void ObserveStep(absl::Duration duration, const StepOutput& output);

  // The oldest open batch was launched and failed because of `cause`: the sequences of its rows end
  // with kError. REQUIRES: num_in_flight() > 0, !cause.ok().
  void CommitFailed(const absl::Status& cause, std::vector<TokenEvent>& events);

  // The batch that Schedule() has just returned was refused because of `cause`: the runner does not
  // know of it. All running sequences end with kError; those that wait continue to wait. Earlier
  // batches stay open. REQUIRES: no other call since Schedule(), whose batch had rows; !cause.ok().
  void AbandonLaunch(const absl::Status& cause, std::vector<TokenEvent>& events);

  // Ends all sequences with kError, and forgets all open batches: the runner will run no more steps
  // because of `cause`. has_work() is false afterwards. REQUIRES: !cause.ok().
  void EndAll(const absl::Status& cause, std::vector<TokenEvent>& events);

  // The most tokens of a sequence whose keys can be cached: max_seq_len, or what the blocks allow.
  int max_cached_tokens() const { return max_cached_tokens_; }

  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  int num_running() const { return static_cast<int>(running_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }  // by either means
  const SwapStatistics& swap_statistics() const { return swap_statistics_; }
  const SpeculationStatistics& speculation_statistics() const { return speculation_statistics_; }
  const DraftCosts& draft_costs() const { return draft_costs_; }
  // Null without host blocks.
  const SwapStore* swap_store() const { return swap_store_ ? &*swap_store_ : nullptr; }
  // Sequences that began with the forked blocks of another one of their request.
  int64_t num_forks() const { return num_forks_; }
  // Lookups, and the tokens requested and found: a preempted sequence counts again when it is
  // readmitted.
  PrefixStatistics prefix_statistics() const { return blocks_.prefix_cache().index().statistics(); }
  // Which prefixes can be found, and which no longer can, since the last call: for a router that sends
  // requests to the process that has their prefix (cache/prefix/prefix_events.h). Valid until the
  // next call.
  PrefixEvents TakePrefixEvents() { return blocks_.TakePrefixEvents(); }
  // Nothing that has been computed so far is found as a prefix from now on: for weights that have
  // changed. Running sequences go on from what they have. O(blocks).
  void ForgetPrefixes() { blocks_.ForgetPrefixes(); }
  const BlockManager& blocks() const { return blocks_; }
  const SchedulerOptions& options() const { return options_; }

  void CheckInvariants() const;

 private:
  struct AddedRequest;
  struct Sequence;
  struct OpenRow {
    Sequence* sequence = nullptr;
    int64_t admission = 0;  // of the sequence: a row of another one is discarded
    int first_token = 0;    // position of the row's first; behind drafts a bound from above
    int num_tokens = 0;
    bool encodes = false;  // the sequence's encoder input, in the same step
    RowOutput output = RowOutput::kNone;
    // That the sequence gets by it: several if they are forced, and at most so many with drafts.
    int num_new_tokens = 0;
    int num_drafts = 0;
    int num_levels = 0;             // of the drafts: how many can be accepted
    bool has_given_drafts = false;  // of the request's predicted_tokens: a chain
    bool feeds_drafter = false;     // its step shows the tokens of all rows to a drafter with keys
    bool scores_prompt = false;     // it brings log-probabilities of tokens of the prompt
    int first_earlier = 0;          // of the step's earlier logits: where those of the row begin
    bool has_earlier = false;
  };
  using OpenBatch = std::vector<OpenRow>;

  Scheduler(const SchedulerOptions& options, BlockManager blocks);

  // ---- Rows of a batch (scheduler.cc).
  // Schedules a running sequence's next token, if it has one to compute.
  void ScheduleDecode(Sequence& sequence);
  // Schedules as much of a running sequence's prompt as the budget and the blocks allow.
  void SchedulePrefill(Sequence& sequence);
  // How many tokens of one prompt still fit into the batch that is being made.
  int ChunkBudget() const;
  // Allocates blocks of a running sequence for `num_tokens`; if necessary, preempts the last of
  // running_. False if that was the sequence itself.
  bool MakeRoom(Sequence& sequence, int num_tokens);
  // Adds drafts to the rows of the batch's decodes.
  void AddDrafts();
  // How many levels of drafts the rows of the batch, as large as it is, may have: by the policy and by
  // what was measured.
  int StepLevels();
  // The most levels of a row, in a batch that has nothing else; 0: it is none of a decode.
  int MostLevels(const OpenRow& open, const ScheduledRow& row) const;
  // How many drafts, of trees levels, of at most `most`, what it accepts is for.
  int NumByAcceptance(Sequence& sequence, int most) const;
  // How many levels of the drafter's, at most `most`, the sequence's next row should have.
  int WantedLevels(Sequence& sequence, int most);
  // Notes of all rows whether the step shows its tokens to a drafter with keys.
  void MarkFedRows();
  // Whether the drafter saw all tokens up to the newest in a row with drafts, and so proposed some. It may
  // have seen more than is counted: a step that captures its graph shows a row's tokens twice. REQUIRES:
  // the batches before are committed, and this one is not.
  bool HasProposed(const OpenRow& row, absl::Span<const int32_t> new_tokens) const;
  // Drafts of so many levels, and levels of so many drafts.
  int DraftsOf(int num_levels) const;
  int LevelsOf(int num_drafts) const;
  // Gets room for up to `num_tokens` tokens beyond those scheduled, from free blocks only; for how
  // many. `may_grow`: whether blocks may be taken; false from when there were too few.
  int RoomForDrafts(const Sequence& sequence, int num_tokens, bool& may_grow);
  // The most tokens of the sequence whose keys can be cached.
  int MaxCachedTokens(const Sequence& sequence) const;
  // A row of the sequence's next tokens; none: the one that the device sampled last.
  void AddRow(Sequence& sequence, absl::Span<const int32_t> tokens);

  // ---- What rows ask of logits, and what comes of it (scheduler_logits.cc).
  // Whether forced tokens are fed like a prompt.
  bool FeedsForcedInChunks(const Sequence& sequence) const;
  // How many tokens of a prompt are computed next, as far as logits of earlier tokens matter.
  int ScoredChunk(const Sequence& sequence, int chunk) const;
  void AddLogitsRequest(const Sequence& sequence);
  // Sets what the row asks for besides its tokens, and notes in `open` what will come of it.
  void SetOutput(Sequence& sequence, ScheduledRow& row, OpenRow& open);
  // Which of the step's earlier logits are those of the token at `position`, in the row; -1: it is the
  // row's last.
  static int EarlierOf(const OpenRow& row, int position);
  // What follows the token at `position`, in the row: `token`, and the `num_top` most probable.
  static TokenLogProbs LogProbsOf(const OpenRow& row, int row_idx, int position,
                                  const StepOutput& output, int32_t token, int num_top);
  // Takes the prompt's log-probabilities that a row brings. False: one of them is NaN.
  bool CollectPromptLogProbs(const OpenRow& row, int row_idx, const StepOutput& output);

  // ---- From waiting to running (scheduler_admission.cc).
  absl::Status CheckRequest(const Request& request) const;
  void AddContent(AddedRequest& added);
  int MaxDraftsOf(const Request& request) const;
  void AdmitWaiting();
  // Whether admission is better put off, since keys that the sequence begins with are being
  // computed.
  bool AwaitsKeys(Sequence& sequence) const;
  bool AwaitsSibling(Sequence& sequence) const;
  bool AwaitsEqualPrefix(Sequence& sequence) const;
  // Puts the sequence's known tokens into a slot. ResourceExhausted if the blocks do not suffice.
  absl::StatusOr<PromptHits> TakeSlot(Sequence& sequence, SlotId slot);
  // The same from the start, but for what is found in the cache.
  absl::StatusOr<PromptHits> AddToCache(Sequence& sequence, SlotId slot);
  // Calls `use` with the sequence's known tokens as a prompt, and returns its result.
  absl::StatusOr<PromptHits> AsPrompt(
      const Sequence& sequence,
      absl::FunctionRef<absl::StatusOr<PromptHits>(const SequencePrompt&)> use) const;
  // The same by the blocks of `sibling`. nullopt, with nothing changed, if it has lost blocks that
  // are needed, or one more cannot be had.
  std::optional<PromptHits> Fork(const Sequence& sibling, SlotId slot);
  // A running sequence of the same request whose prompt is computed as far as `sequence` begins
  // with it. Null if there is none, or nothing to share.
  const Sequence* ForkableSibling(const Sequence& sequence) const;
  void InsertWaiting(Sequence& sequence);
  // The sequence in the slot has begun with `num_tokens` tokens in the cache: of how many of them a
  // drafter has seen the keys, by their blocks.
  int NumDraftedHits(SlotId slot, int num_tokens);

  // ---- What a step has computed (scheduler_commit.cc).
  OpenBatch TakeOldestBatch();
  void CommitRow(const OpenRow& row, int row_idx, const StepOutput& output,
                 std::vector<TokenEvent>& events);
  // Takes the tokens of a row with drafts.
  void CommitDrafts(OpenRow row, int row_idx, const StepOutput& output,
                    std::vector<TokenEvent>& events);
  // Takes a running sequence's next token from a row; `sampled`: what it is unless it is forced.
  // False: the sequence has ended.
  bool TakeToken(const OpenRow& row, int row_idx, int32_t sampled, const StepOutput& output,
                 std::vector<TokenEvent>& events);
  // Ends a running sequence whose logits are broken, and with them perhaps its keys.
  void EndBroken(Sequence& sequence, std::vector<TokenEvent>& events);
  // The next tokens of a running sequence have been computed.
  void CommitTokens(const Sequence& sequence, int num_tokens);
  // Notes which tokens of `range`, of a sequence in a slot, a drafter with keys has seen.
  void NoteDrafted(const Sequence& sequence, const TokenSpan& range);
  FinishReason ReasonToFinish(Sequence& sequence, int32_t token) const;

  // ---- From running or waiting to finished (scheduler_end.cc).
  // Ends an unfinished sequence without a token.
  void End(Sequence& sequence, FinishReason reason, const absl::Status& error,
           std::vector<TokenEvent>& events);
  // Takes away a running sequence's slot and blocks.
  void LeaveSlot(Sequence& sequence);
  // Takes away its slot, whose blocks are freed.
  void VacateSlot(Sequence& sequence);
  // Returns the memory of a batch that is no longer open.
  void Recycle(OpenBatch batch);
  // Forgets the request if nothing of it is left. Invalidates its sequences then.
  void ForgetIfDone(const AddedRequest& added);

  // ---- From running to waiting and back (scheduler_preempt.cc).
  void PreemptLast();
  // Moves the blocks of a running sequence to the host and frees its slot's; false, with nothing
  // changed, if the rule or the lack of host blocks is against it.
  bool SwapOut(Sequence& sequence);
  // As TakeSlot() of a sequence in the swap store, by whichever means costs less.
  absl::StatusOr<PromptHits> TakeSlotAgain(Sequence& sequence, SlotId slot);
  absl::StatusOr<PromptHits> SwapIn(Sequence& sequence, SlotId slot);
  // Frees the host blocks of a sequence, if it has any.
  void DropStored(Sequence& sequence);
  // Leading tokens of a running sequence in blocks that others use too.
  int NumTokensUsedByOthers(SlotId slot) const;
  void CheckSwapInvariants() const;

  SchedulerOptions options_;
  BlockManager blocks_;
  std::optional<SwapStore> swap_store_;  // over blocks_; none: no host blocks
  int64_t next_stored_id_ = 0;
  SwapStatistics swap_statistics_;
  int max_cached_tokens_ = 0;  // of a sequence: max_seq_len, or what the whole pool holds
  bool has_windows_ = false;   // prompts get their blocks chunk by chunk
  std::mt19937_64 seeds_;
  int64_t next_id_ = 0;
  int64_t num_admissions_ = 0;
  int64_t num_preemptions_ = 0;
  int64_t num_forks_ = 0;
  SpeculationStatistics speculation_statistics_;
  DraftCosts draft_costs_;  // read with SpeculationPolicy::measures_steps
  // Of a drafter with keys: by the blocks of a group of full attention, which its layers keep.
  std::optional<DraftedBlocks> drafted_blocks_;
  int drafted_group_ = 0;
  absl::Time next_deadline_ = absl::InfiniteFuture();  // of all sequences, or earlier
  absl::flat_hash_map<SequenceId, std::unique_ptr<AddedRequest>> requests_;
  std::deque<Sequence*> waiting_;   // in the order of admission
  std::vector<Sequence*> running_;  // the last one is preempted first
  std::vector<Sequence*> by_slot_;  // null: the slot is free
  std::vector<SlotId> free_slots_;
  std::vector<OpenBatch> open_;   // oldest first
  std::vector<OpenBatch> spare_;  // committed batches, whose memory is reused

  // The batch returned by Schedule() points into these.
  bool batch_was_launched_ = true;
  std::vector<SlotId> leaves_;
  std::vector<SlotId> next_leaves_;  // left since that batch was made
  std::vector<SlotJoin> joins_;
  std::vector<LogitsRequest> logits_requests_;
  std::vector<BlockCopy> swap_outs_;  // they wait for a batch with rows, too
  std::vector<BlockCopy> swap_ins_;
  std::vector<ScheduledEncode> encodes_;
  std::vector<ScheduledRow> rows_;
  std::vector<ScheduledEmbeddings> embeddings_;
  std::vector<PlaceholderCopy> copies_;
  std::vector<int32_t> masks_;  // [max_num_seqs, mask_words] by row; empty until a masker comes
  // A running sequence has found no blocks for its next chunk. No other is admitted then: it would
  // take what the running ones free, without end.
  bool lacks_blocks_ = false;
  int num_row_tokens_ = 0;
  int num_prefill_tokens_ = 0;  // of them
  int num_decode_rows_ = 0;
  int num_encoder_tokens_ = 0;
  int num_earlier_logits_ = 0;
  ScheduledBatch batch_;
};

}  // namespace reprise

#endif  // ENGINE_SCHEDULER_H_
