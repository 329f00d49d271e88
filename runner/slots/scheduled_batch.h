// The input of the model runner for one step. A scheduler creates it.

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

// A sequence that enters a slot.
//
// The two lengths have no default: a join that does not state both is rejected. JoinOf() takes them
// from a block manager's hits and the prompt.
struct SlotJoin {
  static constexpr int32_t kNotStated = -1;

  SlotId slot = {};
  // Number of the sequence's first tokens whose keys are cached: PromptHits::num_tokens for a
  // prompt, all tokens after a fork or a swap-in, otherwise 0. The slot's first row begins with the
  // next token.
  int32_t seq_len = kNotStated;
  // Number of the sequence's first tokens that the caller knows: the whole prompt including the
  // tokens of seq_len, and for a sequence that returns after preemption also its generated tokens.
  // Rows that end before this length must have RowOutput::kNone, and are otherwise rejected. In
  // [seq_len, max_seq_len]; seq_len if the caller does not know the tokens that follow.
  int32_t prompt_len = kNotStated;
  int64_t sample_index = 0;
  SamplingParams sampling = {};
  // For models with an encoder: number of tokens of the encoder's input. Their keys must be in the
  // slot's blocks of the cross groups before its first row (ScheduledEncode).
  int32_t num_encoder_tokens = 0;
  // 1: the blocks already hold these keys (a prefix hit, a swap-in). 0: this batch, or a later
  // batch before the slot's first row, encodes them.
  int32_t encoder_is_cached = 0;
  // For models with positions of several dimensions: the difference between a token's position, in
  // each dimension, and its index in the sequence. Not used for tokens with explicit positions
  // (RowPositions). Constant until the slot leaves.
  int32_t position_delta = 0;
  // Number of the last tokens of seq_len that a drafter with a KV cache may not have processed: the
  // drafter's layers lack their keys. The drafter processes them in later rows with drafts, from
  // the slot's history. In [0, seq_len].
  int32_t num_undrafted = 0;
};

// Returns the join of a sequence that BlockManager::Add() has put into `slot` with these hits, for
// a prompt of `prompt_len` >= 1 tokens. Pass {} as `hits` if the sequence was added without a
// prompt.
//
//   REPRISE_ASSIGN_OR_RETURN(const PromptHits hits, blocks.Add(slot, {.tokens = prompt}));
//   joins.push_back(JoinOf(slot, hits, prompt.size(), {.temperature = 0.8f}));
//   rows.push_back({.slot = slot, .tokens = prompt.subspan(hits.num_tokens)});
SlotJoin JoinOf(SlotId slot, const PromptHits& hits, size_t prompt_len,
                const SamplingParams& sampling = {});

// Whether a token is chosen from a row's last logits.
enum class RowOutput : int8_t {
  // For a prompt chunk that is not the last (required: see SlotJoin::prompt_len), or a row whose
  // next token is known. The slot's next row must bring `tokens`.
  kNone,
  kToken,  // the token becomes the slot's last token, and is reported
};

// The tokens of a row whose logits are computed.
enum class RowLogits : int8_t {
  kLast,
  // All tokens, with any `output`. ModelRunner::earlier_logits() returns the raw logits of the
  // tokens before the last, starting at index FirstEarlierLogits(). The last token's logits are the
  // same as with kLast. RunnerShape::max_earlier_logits limits the number of earlier tokens per
  // step.
  kAll,
};

// Explicit positions of a row's first tokens, for models with positions of several dimensions
// (ModelSpec::num_position_dims).
struct RowPositions {
  const int32_t* data = nullptr;  // [num_dims, count], each in [0, max_position)
  int64_t dim_stride = 0;         // elements between dimensions
  int num_dims = 0;               // the model's number of dimensions; 0 without positions
  // 0 to query_len. Token i of the row after these has, in all dimensions, position seq_len before
  // the step + i + SlotJoin::position_delta.
  int count = 0;
};

struct ScheduledRow {
  SlotId slot = {};
  // The row's tokens. Empty: one token, the slot's last token, which the host may not know yet.
  absl::Span<const int32_t> tokens = {};
  RowOutput output = RowOutput::kToken;
  // Mask of the tokens that may be chosen, MaskWords(vocab_size) words in xgrammar's layout
  // (runner/sampling/logits_processors.h). Empty: all tokens. Requires RowOutput::kToken.
  absl::Span<const int32_t> allowed_tokens = {};
  RowLogits logits = RowLogits::kLast;
  // The token that follows the row, if the caller knows it: the first token of the next prompt
  // chunk, or a forced token. The row then reports this token's log-probabilities instead of a
  // sampled token's. -1: not set. Requires RowOutput::kNone.
  int32_t next_token = -1;
  // Requires `tokens`.
  RowPositions positions = {};
  // Drafts: tokens that may follow the slot's last token, verified in this step. With
  // DraftAcceptance::kSameText, the drafts that the sequence would have chosen itself, up to the
  // first that differs, are accepted, so the output equals plain decoding except for rounding
  // (docs/speculation.md). Requires a row without `tokens` and allowed_tokens, RowOutput::kToken,
  // RowLogits::kLast, and a sequence without a LogitsRequest. At most
  // SpeculationOptions::max_drafts.
  //
  // Set either num_drafts, the number of drafts that the runner's drafter proposes, or `drafts`.
  int num_drafts = 0;
  absl::Span<const int32_t> drafts = {};
  // If `drafts` form a tree: the parent node of each draft. Node 0 is the slot's last token, and
  // node i is draft i - 1, so parents[i] is in [0, i]. The path of nodes that the sequence would
  // have chosen is accepted. Empty: each draft follows the previous draft. Requires a runner whose
  // drafts may be trees (DraftShape::kTree).
  absl::Span<const int32_t> parents = {};

  int draft_count() const { return drafts.empty() ? num_drafts : static_cast<int>(drafts.size()); }
  int query_len() const {
    return tokens.empty() ? 1 + draft_count() : static_cast<int>(tokens.size());
  }
  // Number of tokens before the last whose logits are computed.
  int num_earlier_logits() const {
    return logits == RowLogits::kAll || draft_count() > 0 ? query_len() - 1 : 0;
  }
  // Whether the row may report log-probabilities of tokens that the caller knows.
  bool is_scored() const {
    return (draft_count() == 0 && num_earlier_logits() > 0) || next_token != -1;
  }
};

// Returns the index of a row's first earlier logits among the step's earlier logits. Every row with
// RowLogits::kAll or with drafts has earlier logits, one for each token before its last
// (num_earlier_logits()). They are in the order of the rows.
int FirstEarlierLogits(absl::Span<const ScheduledRow> rows, int row);

// The encoder's input of a slot that joined with num_encoder_tokens. This step encodes it before
// the rows, and writes its keys into the slot's blocks of the cross groups. Required once, before
// the slot's first row, unless the slot joined with encoder_is_cached.
struct ScheduledEncode {
  SlotId slot = {};
  absl::Span<const int32_t> tokens = {};
};

// Embeddings that replace the embeddings of some of a row's token ids. The ids may be any in the
// vocabulary. Requires a model with ModelSpec::input_embedding_dim.
struct ScheduledEmbeddings {
  int row = 0;          // index of a row of the batch that has `tokens`
  int first_token = 0;  // index in the row
  EmbeddingRows rows = {};
};

// Whether a step without rows runs the model.
enum class IdleStep : int8_t {
  kSkipModel,
  // Runs the model over one inert row, with the graph of one row. For a rank that must take part in
  // the collectives of a forward pass. Changes no sequence. Reports count the row.
  kRunModel,
};

// The scheduler owns the memory of the spans. ModelRunner::Launch() reads it before it returns,
// except for the memory of `embeddings`' rows, which is read later (runner/slots/embedding_rows.h).
// The fields take effect as if they were applied in this order, on the stream of the steps, after
// all steps that were launched before.
struct ScheduledBatch {
  absl::Span<const SlotId> leaves = {};
  absl::Span<const SlotJoin> joins = {};
  // Requests of joining sequences beyond their SamplingParams: penalties, biases,
  // log-probabilities, user-defined stages. No request: plain sampling.
  absl::Span<const LogitsRequest> logits_requests = {};
  absl::Span<const BlockTableUpdate> updates = {};
  // Swaps of blocks, in all layers (CacheOptions::swap). swap_outs copy blocks of preempted
  // sequences to the runner's host memory: src is in the cache, dst in host memory. swap_ins copy
  // them back when the sequences return: src is in host memory, dst in the cache. swap_outs precede
  // swap_ins, and both precede the copies. The next batch may reuse every block.
  absl::Span<const BlockCopy> swap_outs = {};
  absl::Span<const BlockCopy> swap_ins = {};
  // Blocks to copy, in all layers, after the previous step and before this step: the first tokens
  // of forks and of prefixes that end within a block (BlockManager::TakeCopies()).
  absl::Span<const BlockCopy> copies = {};
  absl::Span<const ScheduledEncode> encodes = {};
  absl::Span<const ScheduledRow> rows = {};  // distinct slots
  // In ascending order of row, then token. Ranges must not overlap.
  absl::Span<const ScheduledEmbeddings> embeddings = {};
  IdleStep idle = IdleStep::kSkipModel;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_SCHEDULED_BATCH_H_
