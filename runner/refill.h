// The first act of a step: apply the host's delta to the slots and gather the step's arrays.
//
// One launch, whatever the batch holds. On the CPU the same arithmetic as a function; a test holds
// the two together.
//
//   RefillArgs args{.delta = delta, .slots = slots, .arrays = arrays,
//                   .padded_num_rows = 16, .padded_num_tokens = 16,
//                   .block_size = 16, .num_blocks = 1024};
//   RefillOnHost(args);            // or LaunchRefill(args, stream)
//
// Afterwards seq_len of each row's slot has grown by query_len: the step's keys count as cached for
// what follows on the stream. Rows are bounds-checked in int64: a row with a slot outside [0,
// num_slots), a position beyond max_blocks * block_size, a block outside [1, num_blocks), tokens
// outside the padded sizes, or that appears twice among slots, is inert (as a padded row, its slot
// untouched) and counted in num_bad_rows. Joins, leaves and updates out of range are skipped and
// counted too.

#ifndef RUNNER_REFILL_H_
#define RUNNER_REFILL_H_

#include "runner/slot_state.h"
#include "runner/step_arrays.h"
#include "runner/step_delta.h"

namespace reprise {

struct RefillArgs {
  StepDelta delta;
  SlotState slots;
  StepArrays arrays;
  int padded_num_rows = 0;    // rows that the step's graph has; >= delta rows
  int padded_num_tokens = 0;  // >= delta tokens
  int block_size = 0;
  int num_blocks = 0;
};

void RefillOnHost(const RefillArgs& args);

}  // namespace reprise

#endif  // RUNNER_REFILL_H_
