// The per-row and per-token arrays of a step, at unchanged addresses and maximum size: what a
// captured graph reads.
//
// Refill fills them each step from the delta and the slots, up to the padded size: everything
// beyond the live rows and tokens is reset too, so nothing of an earlier step shows through.
//
//   array            live                                             padded
//   token_ids        the row's tokens                                 0
//   positions        seq_len before the step + i                      0
//   model_positions  those of the delta, else, in each dimension,     0
//                    positions + the slot's position_delta
//   slot_mapping     block * block_size + offset, in each group's     -1
//                    blocks; -1 in cross groups, and without a block
//   query_start_loc  prefix sums of query_len                         the live total, continued
//   seq_lens         keys in the cache after the step's write         0
//   context_lens     keys in the cache before it                      0
//   encoder_lens     keys of the encoder's input                      0
//   table_row        the slot                                         0
//   logits_indices   the row's last token                             0
//   sample_slot      the slot, or -1 if the row does not sample       -1
//   first_verified   the row of logits of the row's first token, if   -1
//                    it has drafts, else -1
//   num_proposed     the row's drafts that the drafter proposes       0
//
// The tokens of a row with drafts are the slot's last token, then the drafts: given ones as they
// are; 0 where the drafter writes token_ids. Its keys count in seq_lens, but the slot's seq_len
// advances by the last token only, until the drafts are verified.
//
// logits_indices has further entries after those of the padded rows, in steps that have them: the
// tokens before the last of rows that want their logits, row by row, then 0 for padding.
//
// Two arrays have an entry for each of logits_indices. They are written only in steps with such
// rows, or with rows whose next token is known, and serve log-probabilities of known tokens:
//
//   array            rows                      earlier tokens         none, padded
//   scored_slot      the slot, if the next     the row's slot         -1
//                    token is known
//   scored_token     that token                the row's next token   -1
//
// Two more serve the verification of drafts, and are written in steps with drafts only; sample_slot
// is one of them, and has entries beyond those of the padded rows then:
//
//   array            rows                      drafts' tokens before  others, padded
//   sample_slot      the slot, or -1           the row's slot         -1
//   sample_offset    drafts of the row         index in the row       0
//
// Runners whose drafts may be trees (DraftShape::kTree) have three more arrays. Only steps with drafts
// write them: refill writes the first, and LaunchTreeTokens() makes the other two from it
// (attention/speculation/tree_tokens.h) and changes positions and sample_offset.
//
//   array            rows with drafts                                 others, padded
//   parents          the node before each node; -1 of the first one   as they were
//   tail_len         nodes of the row                                 0
//   tail_mask        bit j: node j is on the path to the token        as they were
//
// draft_logits is there in runners that keep the logits that drafts are drawn from
// (DraftAcceptance::kRejection). Of a draft's token it says which row of those logits; refill writes -1:
// the draft was not drawn, or nothing is known of it. Written in steps with drafts only.
//
// common_prefix_len is the delta's, of all live rows; 0 where each reads its own keys.

#ifndef REPRISE_RUNNER_SLOTS_STEP_ARRAYS_H_
#define REPRISE_RUNNER_SLOTS_STEP_ARRAYS_H_

#include <cstdint>

namespace reprise {

struct StepArrays {
  int32_t* token_ids = nullptr;  // [max_tokens]
  int32_t* positions = nullptr;  // [max_tokens]
  // [num_position_dims, max_tokens] What the model sees, where it has several dimensions. Null with
  // one: the model sees `positions`, which attention uses in any case.
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
  // [1] 1 + the output (of the runner's ring) that a graph writes the step's tokens to; 0: the graph
  // does not verify them. May be absent.
  int32_t* output = nullptr;
  // [max_rows] RowFault of each row (base/row_fault.h); may be absent.
  int32_t* row_faults = nullptr;
  // [1] The number of rows that could not be served (a slot, column or block out of range, a
  // position beyond the table). They are made inert; the host reads the count together with the
  // step's tokens. Reset by refill.
  int32_t* num_faults = nullptr;
  int max_rows = 0;
  int max_tokens = 0;
  int max_earlier_logits = 0;
  int num_position_dims = 1;

  // Whether drafts may be trees.
  constexpr bool has_trees() const { return tail_mask != nullptr; }

  // The slots of a group [max_tokens].
  constexpr int64_t* group_slots(int group) const {
    return slot_mapping + static_cast<int64_t>(group) * max_tokens;
  }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_STEP_ARRAYS_H_
