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
// Life of a sequence: waiting -> running -> finished; running -> waiting if it is preempted,
// because blocks ran out: its blocks are freed, and its tokens are computed again later (the same
// tokens: the sampling counter continues where it was). The sequence admitted last is preempted
// first. A token sampled by a step that was launched before the host saw the end of its sequence is
// discarded.
//
// Prefix reuse. Computed keys stay in the cache until their blocks are needed for something else: a
// prompt, or a preempted sequence, begins after its cached prefix (SlotJoin::seq_len). Only keys of
// committed batches are found. With partial hits a prompt also reuses the next block's first
// tokens, as far as they are equal: in a copy of it, made before the step (ScheduledBatch::copies).
//
// Encoders. The input of a sequence is encoded in the step that admits it, unless the keys of the
// same input are in the cache.
//
// Groups. With layers of several kinds the blocks that left a window are given back when batches
// are committed, and prompts get their blocks chunk by chunk; a chunk that finds none waits.
//
// Invariants, checked by CheckInvariants():
//   1. Every running sequence has its own slot; waiting ones have none and hold no blocks.
//   2. The block manager holds, for every running sequence, blocks for all tokens scheduled so far,
//      and counts those of committed batches as committed.
//   3. Batches are committed in the order they were scheduled; at most max_steps_in_flight are
//      open.
//
// Thread safety: none; one owner. Host only; no heap allocation in the steady state.

#ifndef ENGINE_SCHEDULER_H_
#define ENGINE_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "cache/blocks/block_manager.h"
#include "cache/blocks/prefix_cache.h"
#include "cache/kv_group.h"
#include "cache/prefix/prefix_index.h"
#include "cache/prefix/prefix_match.h"
#include "engine/request.h"
#include "runner/slots/scheduled_batch.h"

namespace reprise {

struct SchedulerOptions {
  int max_num_seqs = 0;    // rows of a step, and slots
  int max_num_tokens = 0;  // of a step; at least max_num_seqs
  int prefill_chunk = 0;   // the most prompt tokens of one row in a step; 0: max_num_tokens
  int max_seq_len = 0;     // tokens of a sequence whose keys are cached
  int max_steps_in_flight = 1;
  int num_blocks = 0;  // null block included
  int block_size = 16;
  std::vector<KvGroupSpec> groups = {};  // of the model's layers; none: one full group
  // The longest input of the model's encoder, and the most tokens that one step encodes. 0: the
  // model has no encoder.
  int max_encoder_tokens = 0;
  int max_encoder_step_tokens = 0;
  // Whether sequences reuse cached prefixes. The generated texts are the same as without it,
  // provided that the kernels give the same keys for other lengths of chunks.
  PrefixReuse prefix_reuse = PrefixReuse::kOn;
  // kCopied: a cached prefix may end within a block, which saves up to block_size - 1 tokens of a
  // prompt for a copy of a block. The scheduler then keeps the cache's tokens, 4 bytes each.
  PartialHits partial_hits = PartialHits::kNone;
};

class Scheduler {
 public:
  // Errors: InvalidArgument naming the field.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(const SchedulerOptions& options);
  ~Scheduler();

  // Queues a request. Errors: InvalidArgument for an empty prompt, max_new_tokens < 1, a prompt
  // longer than max_seq_len or than the whole cache: waiting would never help; for an encoder input
  // that is too long, or if the model has no encoder.
  absl::StatusOr<SequenceId> Add(Request request);

  // Whether any sequence is unfinished or any batch uncommitted.
  bool has_work() const;

  // Batches scheduled and not committed.
  int num_in_flight() const { return static_cast<int>(open_.size()); }

  // Whether Schedule() may be called: fewer than max_steps_in_flight batches are open.
  bool can_schedule() const { return num_in_flight() < options_.max_steps_in_flight; }

  // The next batch, valid until the next call of any method. It is empty if every sequence waits
  // for a commit: then there is nothing to launch or to commit. REQUIRES: can_schedule().
  const ScheduledBatch& Schedule();

  // The tokens of the oldest open batch, one per row (ignored where RowOutput::kNone). Appends each
  // sequence's new token to `events`. REQUIRES: num_in_flight() > 0, tokens.size() == rows of that
  // batch.
  void Commit(absl::Span<const int32_t> tokens, std::vector<TokenEvent>& events);

  // The most tokens of a sequence whose keys can be cached: max_seq_len, or what the blocks allow.
  int max_cached_tokens() const { return max_cached_tokens_; }

  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  int num_running() const { return static_cast<int>(running_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }
  // Lookups, and the tokens requested and found: a preempted sequence counts again when it is
  // readmitted.
  PrefixStatistics prefix_statistics() const { return blocks_.prefix_cache().index().statistics(); }
  const BlockManager& blocks() const { return blocks_; }

  void CheckInvariants() const;

 private:
  struct Sequence;
  struct OpenRow {
    Sequence* sequence;
    uint32_t run;  // of the sequence: a row of an earlier run is discarded
    int num_tokens;
    bool encodes;  // the sequence's encoder input, in the same step
    RowOutput output;
  };
  using OpenBatch = std::vector<OpenRow>;

  Scheduler(const SchedulerOptions& options, BlockManager blocks);
  // Schedules a running sequence's next token, if it has one to compute.
  void ScheduleDecode(Sequence& sequence);
  // Schedules as much of a running sequence's prompt as the budget and the blocks allow.
  void SchedulePrefill(Sequence& sequence);
  // How many tokens of one prompt still fit into the batch that is being made.
  int ChunkBudget() const;
  // Allocates blocks of a running sequence for `num_tokens`; if necessary, preempts the sequences
  // admitted last. False if that was the sequence itself.
  bool MakeRoom(Sequence& sequence, int num_tokens);
  void AdmitWaiting();
  void AddRow(Sequence& sequence, absl::Span<const int32_t> tokens, RowOutput output);
  // Takes away a running sequence's slot and blocks.
  void LeaveSlot(Sequence& sequence);
  void PreemptLast();
  // The next tokens of a running sequence have been computed.
  void CommitTokens(const Sequence& sequence, int num_tokens);
  FinishReason ReasonToFinish(const Sequence& sequence, int32_t token) const;

  SchedulerOptions options_;
  BlockManager blocks_;
  int max_cached_tokens_ = 0;  // of a sequence: max_seq_len, or what the whole pool holds
  bool has_windows_ = false;   // prompts get their blocks chunk by chunk
  int64_t next_id_ = 0;
  int64_t num_preemptions_ = 0;
  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;  // in order of admission
  std::vector<SlotId> free_slots_;
  std::vector<OpenBatch> open_;   // oldest first
  std::vector<OpenBatch> spare_;  // committed batches, whose memory is reused

  // The batch returned by Schedule() points into these.
  bool batch_was_launched_ = true;
  std::vector<SlotId> leaves_;
  std::vector<SlotId> next_leaves_;  // left since that batch was made
  std::vector<SlotJoin> joins_;
  std::vector<ScheduledEncode> encodes_;
  std::vector<ScheduledRow> rows_;
  int num_row_tokens_ = 0;
  int num_encoder_tokens_ = 0;
  ScheduledBatch batch_;
};

}  // namespace reprise

#endif  // ENGINE_SCHEDULER_H_
