// The per-row and per-token arrays of a step. They have fixed addresses and maximum sizes, so that
// captured graphs can read them.
//
// Each step, refill writes them from the delta and the slots, up to the padded size. Entries after
// the live rows and tokens are reset too, unless stated otherwise below, so that no values of an
// earlier step remain.
//
//   array            live                                             padded
//   token_ids        the row's tokens                                 0
//   positions        seq_len before the step + i                      0
//   model_positions  the delta's positions; otherwise, in each        0
//                    dimension, positions + the slot's position_delta
//   slot_mapping     block * block_size + offset, per group; -1 in    -1
//                    cross groups, and for tokens without a block
//   query_start_loc  prefix sums of query_len                         the live total, continued
//   seq_lens         keys in the cache after the step has written     0
//   context_lens     keys in the cache before the step                0
//   encoder_lens     keys of the encoder's input                      0
//   table_row        the slot                                         0
//   logits_indices   the row's last token                             0
//   sample_slot      the slot, or -1 if the row does not sample       -1
//   first_verified   row of logits of its first token, if the row     -1
//                    has drafts; otherwise -1
//   num_proposed     number of drafts that the drafter proposes       0
//
// The tokens of a row with drafts are the slot's last token, then the drafts: the given drafts, or
// 0 if the drafter writes them. seq_lens includes their keys, but the slot's seq_len advances only
// by the last token until the drafts are verified.
//
// In steps that need logits of earlier tokens, logits_indices has further entries after the entries
// of the padded rows: the tokens before the last of each row that needs their logits, row by row,
// then 0 for padding.
//
// Two arrays have one entry for each entry of logits_indices. They serve log-probabilities of known
// tokens, and are written only with RefillArgs::has_scored_rows (for rows with drafts, as -1):
//
//   array            rows                      earlier tokens         none, padded
//   scored_slot      the slot, if the next     the row's slot         -1
//                    token is known
//   scored_token     that token                the row's next token   -1
//
// sample_offset, first_verified and num_proposed serve the verification of drafts, and are written
// only in steps with drafts. In these steps, sample_slot and sample_offset have one entry for each
// entry of logits_indices:
//
//   array            rows                      tokens before a draft  other, padded
//   sample_slot      the slot, or -1           the row's slot         -1
//   sample_offset    number of drafts          index in the row       0
//
// Runners whose drafts may be trees (DraftShape::kTree) have three more arrays, which are written
// only in steps with drafts. Refill writes `parents`. LaunchTreeTokens() derives tail_len and
// tail_mask from it (attention/speculation/tree_tokens.h), and changes positions and sample_offset.
//
//   array            rows with drafts                                 other, padded
//   parents          parent of each node; -1 for node 0               unchanged
//   tail_len         nodes of the row                                 0
//   tail_mask        bit j: node j is on the path to the token        unchanged
//
// draft_logits exists in runners that keep the logits that drafts are sampled from
// (DraftAcceptance::kRejection). For a draft's token, it is the row of the kept logits that the
// draft was sampled from. Refill writes -1: not sampled, or unknown. Written only in steps with
// drafts.
//
// common_prefix_len is the delta's value for all live rows; 0: each row reads its own keys.

#ifndef REPRISE_RUNNER_SLOTS_STEP_ARRAYS_H_
#define REPRISE_RUNNER_SLOTS_STEP_ARRAYS_H_

#include <cstdint>

namespace reprise {

struct StepArrays {
  int32_t* token_ids = nullptr;  // [max_tokens]
  int32_t* positions = nullptr;  // [max_tokens]
  // [num_position_dims, max_tokens] The positions that the model reads if they have several
  // dimensions. Null if they have one dimension: the model then reads `positions`. Attention always
  // uses `positions`.
  int32_t* model_positions = nullptr;
  int64_t* slot_mapping = nullptr;       // [num_groups, max_tokens]
  int32_t* query_start_loc = nullptr;    // [max_rows + 1]
  int32_t* seq_lens = nullptr;           // [max_rows]
  int32_t* context_lens = nullptr;       // [max_rows]
  int32_t* encoder_lens = nullptr;       // [max_rows]
  int32_t* table_row = nullptr;          // [max_rows]
  int32_t* logits_indices = nullptr;     // [max_rows + max_earlier_logits]
  int32_t* sample_slot = nullptr;        // [max_rows + max_earlier_logits]
  int32_t* sample_offset = nullptr;      // [max_rows + max_earlier_logits]
  int32_t* first_verified = nullptr;     // [max_rows]
  int32_t* num_proposed = nullptr;       // [max_rows]
  int32_t* scored_slot = nullptr;        // [max_rows + max_earlier_logits]
  int32_t* scored_token = nullptr;       // [max_rows + max_earlier_logits]
  int32_t* parents = nullptr;            // [max_tokens]
  int32_t* tail_len = nullptr;           // [max_rows]
  uint64_t* tail_mask = nullptr;         // [max_tokens]
  int32_t* draft_logits = nullptr;       // [max_tokens]
  int32_t* common_prefix_len = nullptr;  // [1]
  // [1] 1 + the index in the runner's ring of outputs that a graph writes the step's tokens to. 0:
  // the graph does not verify the tokens. May be null.
  int32_t* output = nullptr;
  // [max_rows] RowFault of each row (base/row_fault.h). May be null.
  int32_t* row_faults = nullptr;
  // [1] Number of rows, leaves, joins and updates that were not served (a slot, column or block out
  // of range, a position beyond the table). Such rows are inert. The host reads the count together
  // with the step's tokens. Refill resets it.
  int32_t* num_faults = nullptr;
  int max_rows = 0;
  int max_tokens = 0;
  int max_earlier_logits = 0;
  int num_position_dims = 1;

  // Returns whether drafts may be trees.
  constexpr bool has_trees() const { return tail_mask != nullptr; }

  // Returns the slots of a group, [max_tokens].
  constexpr int64_t* group_slots(int group) const {
    return slot_mapping + static_cast<int64_t>(group) * max_tokens;
  }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_STEP_ARRAYS_H_
