// The host's message to the device for one step: changes since the previous step, and the slots
// that take part.
//
// A delta is in memory that the host writes and the device reads (mapped pinned on a GPU), in a
// ring: it must not be rewritten before the refill that reads it has run. All arrays have fixed
// capacity; counts say how much is live.
//
// Refill applies it in this order: leaves, joins, updates, rows. So a slot may leave and be joined
// again in one delta. If a delta has several joins of a slot, or several updates of an entry, the
// last one takes effect.

#ifndef REPRISE_RUNNER_SLOTS_STEP_DELTA_H_
#define REPRISE_RUNNER_SLOTS_STEP_DELTA_H_

#include <cstdint>

#include "reprise/runner/sampling/sampling_params.h"

namespace reprise {

// A sequence enters a slot: the fields of SlotJoin (runner/slots/scheduled_batch.h) that the device
// reads.
struct StepJoin {
  int32_t slot = 0;
  int32_t seq_len = 0;
  int64_t sample_index = 0;
  SamplingParams sampling = {};
  int32_t num_encoder_tokens = 0;
  int32_t position_delta = 0;
  int32_t num_undrafted = 0;
};

// A new entry of a block table: the fields of BlockTableUpdate (cache/tables/block_table_update.h).
struct StepUpdate {
  int32_t slot;
  int32_t column;
  int32_t block;  // 0, the null block, clears the entry
  int32_t group = 0;
};

// StepRow::samples of a row with drafts: tokens are chosen from all of its logits, to verify them.
inline constexpr int32_t kVerifiesDrafts = 2;

// A row of the step.
struct StepRow {
  int32_t slot = 0;
  int32_t query_len = 1;
  // Where the row's tokens are in host_tokens. -1: the slot's last_token, and query_len is 1. With
  // drafts the first token is always the slot's last_token, and this is where the query_len - 1
  // drafts are; -1: the drafter proposes them.
  int32_t first_host_token = -1;
  // 1: the token chosen from the row's last logits becomes the slot's last_token. 0: logits only,
  // such as a prompt chunk that is not the last. Or kVerifiesDrafts.
  int32_t samples = 1;

  constexpr bool verifies() const { return samples == kVerifiesDrafts; }
};

// What a row asks for beyond its last logits. Read only in steps in which a row does
// (RefillArgs::has_scored_rows).
struct StepRowScore {
  int32_t all_logits = 0;   // 1: logits of the row's tokens before its last, too
  int32_t next_token = -1;  // the token that follows a row with samples 0; -1: not known
};

struct StepDeltaCounts {
  int32_t num_leaves = 0;
  int32_t num_joins = 0;
  int32_t num_updates = 0;
  int32_t num_rows = 0;
  int32_t num_tokens = 0;  // sum of query_len
  int32_t num_host_tokens = 0;
  // The number of leading keys that all rows share in the same blocks and that are read once for
  // all rows. 0: each row reads its own.
  int32_t common_prefix_len = 0;
  // 1: host_positions holds positions of this step.
  int32_t has_positions = 0;
};

// Views of one ring slot, as the reader addresses it. Each array is aligned to 16 bytes.
struct StepDelta {
  StepDeltaCounts* counts = nullptr;
  int32_t* leaves = nullptr;       // [num_slots] slots
  StepJoin* joins = nullptr;       // [num_slots]
  StepUpdate* updates = nullptr;   // [max_updates]
  StepRow* rows = nullptr;         // [max_rows]
  int32_t* host_tokens = nullptr;  // [max_tokens]
  StepRowScore* scores = nullptr;  // [max_rows] of the rows
  // [num_position_dims, max_tokens] of the host_tokens, for models with several dimensions, else
  // null. -1: the token's index in its sequence + the slot's position_delta.
  int32_t* host_positions = nullptr;
  // [max_tokens] of the host_tokens that are drafts: the node that each follows
  // (ScheduledRow::parents). Null if drafts are chains.
  int32_t* host_parents = nullptr;
  // The capacity of `updates`. The GPU reads the first updates together with the counts, in one
  // PCIe round trip instead of two; at 0 it waits for the counts.
  int max_updates = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_STEP_DELTA_H_
