// From one decode step to the next without the host: the arrays of the step behind the one that
// ran, from the tokens that were sampled on the device. V5.
//
// Rows of 1 and 5 new tokens (a prefill), at seq_lens 18 and 5, block_size 16:
//
//   AdvanceStepArgs args = {.seq_lens = {18, 5, 0}, .sampled = {70, 71, -}, ...};   // 1 padded row
//   token_ids 70 71   positions 18 5   seq_lens 19 6 0   query_start_loc 0 1 2 2
//
// Each live row gets one token, whatever it had: prefills turn into decodes, and the tokens behind
// the live ones become inert. Block tables are read where they are: blocks for the new tokens must
// have been reserved. The arrays of the step that ran may be the ones written: all is in place.
// (Engines that keep their sequences in slots have the same in refill, from the host's deltas.)
//
// A row that cannot go on is inert from then on (seq_len 0, no token) and is reported
// (attention/row_fault.h): kTableRow; kLength at the end of its context or table; kToken for a
// negative token, as of a prompt chunk that is not the last; kNoBlock where its table has no block
// for the token. Padded rows stay padded.
//
// Thread safety: none. Cost: linear in rows and tokens; no allocation.

#ifndef ATTENTION_ADVANCE_STEP_H_
#define ATTENTION_ADVANCE_STEP_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/advance_step_args.h"
#include "attention/paged_batch.h"

namespace reprise {

// The batch that the arrays make, on the host or on the device.
PagedBatch AdvancedBatchOf(const AdvanceStepArgs& args);

// What must hold of the sizes, whatever the arrays hold. Errors: InvalidArgument naming the field.
absl::Status CheckAdvanceStepSizes(const AdvanceStepArgs& args);

// What the device does, over host memory. REQUIRES: the sizes are OK.
void AdvanceStepOnHost(const AdvanceStepArgs& args);

// The same with a Status. REQUIRES: arrays.row_faults is there. Errors: InvalidArgument naming the
// size, or the first row that cannot go on; the others have.
absl::StatusOr<PagedBatch> AdvanceStep(const AdvanceStepArgs& args);

}  // namespace reprise

#endif  // ATTENTION_ADVANCE_STEP_H_
