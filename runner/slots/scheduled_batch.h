// The input of the model runner for one step, made by a scheduler.

#ifndef RUNNER_SLOTS_SCHEDULED_BATCH_H_
#define RUNNER_SLOTS_SCHEDULED_BATCH_H_

#include <cstdint>

#include "absl/types/span.h"
#include "base/ids.h"
#include "cache/block_copy.h"
#include "cache/tables/block_table_view.h"
#include "runner/sampling/logits_request.h"
#include "runner/slots/embedding_rows.h"
#include "runner/slots/step_delta.h"

namespace reprise {

// Whether the caller needs the token chosen from a row's last logits.
enum class RowOutput : int8_t {
  kNone,   // a prompt chunk that is not the last, or a row whose next token is known
  kToken,  // becomes the slot's last token, and is reported
};

// Which of a row's tokens the model's logits are computed of.
enum class RowLogits : int8_t {
  kLast,
  // Of all of them, whatever `output` is: those of the last one as with kLast, those of the earlier
  // ones raw, in StepResult::earlier_logits. A row of one token is the same with kLast.
  // ModelRunnerOptions::max_earlier_logits bounds the earlier tokens of a step.
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
  // Blocks to move, in all layers, to the runner's host memory (src: a block of the cache, dst: a
  // host block) and back (src: a host block, dst: a block of the cache): sequences that give up
  // their blocks, and such that return (ModelRunnerOptions::num_swap_blocks). Those out are moved
  // before those in, and all before the copies. The next batch may use every block anew.
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

#endif  // RUNNER_SLOTS_SCHEDULED_BATCH_H_
