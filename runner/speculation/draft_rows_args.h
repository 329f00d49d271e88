// Arguments of the rows of a draft model's passes (runner/speculation/draft_rows.h), and the work on
// one row, shared by the host and device forms.

#ifndef RUNNER_SPECULATION_DRAFT_ROWS_ARGS_H_
#define RUNNER_SPECULATION_DRAFT_ROWS_ARGS_H_

#include <cstdint>

#include "attention/metadata/batch_rows.h"
#include "cache/kv_group.h"
#include "runner/slots/slot_state.h"
#include "runner/slots/step_arrays.h"

namespace reprise {

struct DraftRowsArgs {
  SlotState slots;    // of the runner
  StepArrays arrays;  // of the step, refilled; token_ids of the drafts are written
  StepArrays draft;   // of the pass: written
  // [num_rows] what the draft model chose in the pass before; read in passes after the first.
  const int32_t* chosen = nullptr;
  int pass = 0;        // 0 to max_drafts; in the last there are no rows, only a draft to keep
  int max_drafts = 0;  // of a row of this step
  int num_rows = 0;    // padded, of the step and of the pass
  int num_tokens = 0;  // padded, of the pass: num_rows * (1 + max_drafts) in pass 0, then num_rows
  int block_size = 0;
  int num_blocks = 0;
  KvGroupSpec groups[kMaxKvGroups] = {};  // the first slots.num_groups
};

}  // namespace reprise

#endif  // RUNNER_SPECULATION_DRAFT_ROWS_ARGS_H_
