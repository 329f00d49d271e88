// The host's message to the device for one step: the changes since the previous step, and the rows
// of the step.
//
// The host writes a delta to memory that the device reads (mapped pinned memory on a GPU), in a
// ring. The host must not overwrite it before the refill that reads it has completed. All arrays
// have fixed capacities; counts give the number of valid entries.
//
// Refill applies a delta in this order: leaves, joins, updates, rows. A slot may therefore leave
// and be joined again in one delta. If a delta has several joins of a slot, or several updates of
// an entry, the last of them takes effect.

#ifndef REPRISE_RUNNER_SLOTS_STEP_DELTA_H_
#define REPRISE_RUNNER_SLOTS_STEP_DELTA_H_

#include <cstdint>

#include "reprise/runner/sampling/sampling_params.h"

namespace reprise {

// A sequence that enters a slot: the fields of SlotJoin (runner/slots/scheduled_batch.h) that the
// device reads.
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

// StepRow::samples of a row with drafts: a token is chosen from each of its logits, to verify the
// drafts.
inline constexpr int32_t kVerifiesDrafts = 2;

// A row of the step.
struct StepRow {
  int32_t slot = 0;
  int32_t query_len = 1;
  // Index of the row's first token in host_tokens. -1: the token is the slot's last_token, and
  // query_len is 1. In a row with drafts, the first token is always the slot's last_token. This is
  // then the index of the query_len - 1 drafts, or -1 if the drafter proposes them.
  int32_t first_host_token = -1;
  // 1: the token chosen from the row's last logits becomes the slot's last_token. 0: only logits,
  // as for a prompt chunk that is not the last. Or kVerifiesDrafts.
  int32_t samples = 1;

  constexpr bool verifies() const { return samples == kVerifiesDrafts; }
};

// The logits and scores that a row needs beyond its last logits. Read only if a row of the step
// needs some (RefillArgs::has_scored_rows).
struct StepRowScore {
  int32_t all_logits = 0;   // 1: also logits of the row's tokens before its last
  int32_t next_token = -1;  // the token that follows a row with samples 0; -1: unknown
};

struct StepDeltaCounts {
  int32_t num_leaves = 0;
  int32_t num_joins = 0;
  int32_t num_updates = 0;
  int32_t num_rows = 0;
  int32_t num_tokens = 0;  // sum of query_len
  int32_t num_host_tokens = 0;
  // Number of leading keys that all rows share in the same blocks and that are read once for all
  // rows. 0: each row reads its own keys.
  int32_t common_prefix_len = 0;
  // 1: host_positions holds positions for this step.
  int32_t has_positions = 0;
};

// Views of one ring slot, with addresses of the reader. Each array is aligned to 16 bytes.
struct StepDelta {
  StepDeltaCounts* counts = nullptr;
  int32_t* leaves = nullptr;       // [num_slots] slots
  StepJoin* joins = nullptr;       // [num_slots]
  StepUpdate* updates = nullptr;   // [max_updates]
  StepRow* rows = nullptr;         // [max_rows]
  int32_t* host_tokens = nullptr;  // [max_tokens]
  StepRowScore* scores = nullptr;  // [max_rows] one per row
  // [num_position_dims, max_tokens] Positions of the host_tokens, for models with several position
  // dimensions; otherwise null. -1: the token's index in its sequence + the slot's position_delta.
  int32_t* host_positions = nullptr;
  // [max_tokens] For host_tokens that are drafts: the parent node (ScheduledRow::parents). Null if
  // drafts are chains.
  int32_t* host_parents = nullptr;
  // Capacity of `updates`. The GPU reads the first updates together with the counts, in one PCIe
  // round trip instead of two. If 0, it reads the counts first.
  int max_updates = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_STEP_DELTA_H_
