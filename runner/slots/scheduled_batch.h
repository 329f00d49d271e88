// The input of the model runner for one step, made by a scheduler.

#ifndef REPRISE_RUNNER_SLOTS_SCHEDULED_BATCH_H_
#define REPRISE_RUNNER_SLOTS_SCHEDULED_BATCH_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/blocks/block_manager_options.h"
#include "reprise/cache/tables/block_table_update.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/slots/embedding_rows.h"

namespace reprise {

// A sequence enters a slot.
//
// The two lengths have no default: a join that does not state both is refused. JoinOf() takes them
// from a block manager's hits and the prompt.
struct SlotJoin {
  static constexpr int32_t kNotStated = -1;

  SlotId slot = {};
  // Number of the sequence's first tokens whose keys are cached: PromptHits::num_tokens of a prompt,
  // all of them after a fork or a swap-in, else 0. The slot's first row begins with the next token.
  int32_t seq_len = kNotStated;
  // Number of the sequence's first tokens that the caller knows: the whole prompt, the tokens of
  // seq_len included; for a sequence that returns after preemption also what it has generated. Rows
  // that end before the prompt does must have RowOutput::kNone, and are refused otherwise. In
  // [seq_len, max_seq_len]; seq_len itself if the caller does not know the tokens that follow.
  int32_t prompt_len = kNotStated;
  int64_t sample_index = 0;
  SamplingParams sampling = {};
  // Number of tokens of the encoder's input, for models with an encoder. Their keys are in the
  // slot's blocks of the cross groups before its first row (ScheduledEncode).
  int32_t num_encoder_tokens = 0;
  // 1: these keys are in the blocks already (a prefix hit, a swap-in). 0: the batch with this join,
  // or a later one before the slot's first row, encodes them.
  int32_t encoder_is_cached = 0;
  // For models with positions of several dimensions: the difference between a token's position, in
  // each dimension, and its index, unless its row has positions (RowPositions). Constant until the
  // slot leaves.
  int32_t position_delta = 0;
  // Number of the last tokens of seq_len that a draft model, or heads that attend, may not have
  // processed: keys of these tokens are missing in the drafter's layers. The drafter processes them in
  // later rows with drafts, from the slot's history. In [0, seq_len].
  int32_t num_undrafted = 0;
};

// The join of a sequence whose prompt of `prompt_len` tokens, at least one, BlockManager::Add() has
// put into `slot` with these hits. `hits` is {} if the sequence was added without a prompt.
//
//   REPRISE_ASSIGN_OR_RETURN(const PromptHits hits, blocks.Add(slot, {.tokens = prompt}));
//   joins.push_back(JoinOf(slot, hits, prompt.size(), {.temperature = 0.8f}));
//   rows.push_back({.slot = slot, .tokens = prompt.subspan(hits.num_tokens)});
SlotJoin JoinOf(SlotId slot, const PromptHits& hits, size_t prompt_len,
                const SamplingParams& sampling = {});

// Whether the caller needs the token chosen from a row's last logits.
enum class RowOutput : int8_t {
  // A prompt chunk that is not the last (required: see SlotJoin::prompt_len), or a row whose next
  // token is known. The slot's next row must bring `tokens`.
  kNone,
  kToken,  // becomes the slot's last token, and is reported
};

// The tokens of a row whose logits are computed.
enum class RowLogits : int8_t {
  kLast,
  // All tokens, with any `output`. ModelRunner::earlier_logits() has the raw logits of the tokens
  // before the last, at the index FirstEarlierLogits(). The last token's logits are the same as
  // with kLast. RunnerShape::max_earlier_logits bounds the earlier tokens of a step.
  kAll,
};

// Positions of a row's first tokens as the model sees them, for models with positions of several
// dimensions (ModelSpec::num_position_dims).
struct RowPositions {
  const int32_t* data = nullptr;  // [num_dims, count], each in [0, max_position)
  int64_t dim_stride = 0;         // elements from dimension to dimension
  int num_dims = 0;               // the model's; 0 without positions
  // 0 to query_len. The row's other tokens have, in all dimensions, the position
  // seq_len before the step + i + SlotJoin::position_delta.
  int count = 0;
};

struct ScheduledRow {
  SlotId slot = {};
  // The row's tokens. Empty: one token, the slot's last, which the host need not know yet.
  absl::Span<const int32_t> tokens = {};
  RowOutput output = RowOutput::kToken;
  // The tokens that may be chosen, a mask of MaskWords(vocab_size) words in xgrammar's layout
  // (runner/sampling/logits_processors.h). Empty: any. Only for rows with RowOutput::kToken.
  absl::Span<const int32_t> allowed_tokens = {};
  RowLogits logits = RowLogits::kLast;
  // The token that follows the row, where the caller knows it: the first of the next prompt chunk,
  // or a forced one. The row's log-probabilities are those of this token, in place of one that is
  // chosen. -1: none. Only for rows with RowOutput::kNone.
  int32_t next_token = -1;
  // Only for rows with `tokens`.
  RowPositions positions = {};
  // Drafts: tokens that may follow the slot's last one, verified in this step. Those that the
  // sequence would have chosen itself, up to the first that it would not, are accepted, so the text
  // is that of plain decoding (docs/speculation.md). Only for rows without `tokens`, with
  // RowOutput::kToken, RowLogits::kLast and without allowed_tokens, of sequences without a
  // LogitsRequest. At most SpeculationOptions::max_drafts.
  //
  // Either the number of drafts that the runner's drafter shall propose, or the drafts themselves.
  int num_drafts = 0;
  absl::Span<const int32_t> drafts = {};
  // With `drafts`, one for each: which node it follows, if they are a tree. Node 0 is the slot's
  // last token and node i draft i - 1, so parents[i] is in [0, i]. The path of nodes that the
  // sequence would have chosen is accepted. Empty: each draft follows the one before it. Only in
  // runners whose drafts may be trees (DraftShape::kTree).
  absl::Span<const int32_t> parents = {};

  int draft_count() const { return drafts.empty() ? num_drafts : static_cast<int>(drafts.size()); }
  int query_len() const {
    return tokens.empty() ? 1 + draft_count() : static_cast<int>(tokens.size());
  }
  // Tokens before the last whose logits are computed.
  int num_earlier_logits() const {
    return logits == RowLogits::kAll || draft_count() > 0 ? query_len() - 1 : 0;
  }
  // Whether log-probabilities of tokens that the caller knows may be reported for the row.
  bool is_scored() const {
    return (draft_count() == 0 && num_earlier_logits() > 0) || next_token != -1;
  }
};

// Returns the index of a row's first earlier logits among the step's earlier logits. Every row with
// RowLogits::kAll or with drafts has earlier logits, one for each token before its last
// (num_earlier_logits()). They are in the order of the rows.
int FirstEarlierLogits(absl::Span<const ScheduledRow> rows, int row);

// The encoder's input of a slot that joined with num_encoder_tokens: it is encoded in this step,
// before the rows, and its keys are written into the slot's blocks of the cross groups. Required
// once, before the slot's first row, unless the slot joined with encoder_is_cached.
struct ScheduledEncode {
  SlotId slot = {};
  absl::Span<const int32_t> tokens = {};
};

// Embeddings of some of a row's tokens, in place of those of their ids, which may be any in the
// vocabulary. For models that take them (ModelSpec::input_embedding_dim).
struct ScheduledEmbeddings {
  int row = 0;          // of the batch's rows: one that has `tokens`
  int first_token = 0;  // of the row
  EmbeddingRows rows = {};
};

// What a batch without rows does.
enum class IdleStep : int8_t {
  kSkipModel,
  // Runs the model over one inert row, by the graph of one row: for a rank whose forward pass has
  // collectives in which it must take part. No sequence changes. Reports count it as a row.
  kRunModel,
};

// Spans belong to the scheduler and are read before ModelRunner::Launch() returns; only the memory
// of `embeddings`' rows is read later (runner/slots/embedding_rows.h). Applied in the order of the
// fields, all on the stream of the steps: after every step that was launched before.
struct ScheduledBatch {
  absl::Span<const SlotId> leaves = {};
  absl::Span<const SlotJoin> joins = {};
  // What sequences that join ask for beyond their SamplingParams: penalties, biases,
  // log-probabilities, stages of the user's own. Those without a request ask for nothing.
  absl::Span<const LogitsRequest> logits_requests = {};
  absl::Span<const BlockTableUpdate> updates = {};
  // Swaps of blocks, in all layers (CacheOptions::swap). swap_outs move blocks of preempted
  // sequences to the runner's host memory: src is a block of the cache, dst a host block. swap_ins
  // move these blocks back when the sequences return: src is a host block, dst a block of the
  // cache. swap_outs run before swap_ins, and both before the copies. The next batch may reuse
  // every block.
  absl::Span<const BlockCopy> swap_outs = {};
  absl::Span<const BlockCopy> swap_ins = {};
  // Blocks to copy, in all layers, after the previous step and before this one: the first tokens of
  // forks and of prefixes that end within a block (BlockManager::TakeCopies()).
  absl::Span<const BlockCopy> copies = {};
  absl::Span<const ScheduledEncode> encodes = {};
  absl::Span<const ScheduledRow> rows = {};  // distinct slots
  // Ascending by row, then token; ranges do not overlap.
  absl::Span<const ScheduledEmbeddings> embeddings = {};
  IdleStep idle = IdleStep::kSkipModel;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_SCHEDULED_BATCH_H_
