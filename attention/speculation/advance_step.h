// Advances a batch from one decode step to the next without the host: builds the arrays of the next
// step from the tokens sampled on the device. V5.
//
// Rows of 1 and 5 new tokens (a prefill), at seq_lens 18 and 5, block_size 16:
//
//   AdvanceStepArgs args = {.seq_lens = {18, 5, 0}, .sampled = {70, 71, -}, ...};   // 1 padded row
//   token_ids 70 71   positions 18 5   seq_lens 19 6 0   query_start_loc 0 1 2 2
//
// Each live row gets one token, whatever it had: prefills turn into decodes, and the tokens after
// the live ones become inert. Block tables are read in place: blocks for the new tokens must
// already be reserved. The output arrays may be the arrays of the step that ran (in place).
// (Engines that keep their sequences in slots use refill instead, which works from the host's
// deltas.)
//
// A row that cannot continue becomes inert (seq_len 0, no token) and is reported
// (base/row_fault.h): kTableRow; kLength at the end of its context or table; kToken for a negative
// token, for example of a prompt chunk that is not the last; kNoBlock if its table has no block for
// the token; kNoRoom if its blocks, after those of the live rows before it, pass the packed table,
// and then for all later live rows. Padded rows stay padded.
//
// Kernels that read packed tables get theirs grown in the same call (vLLM V0's advance_step over
// padded paged_kv_indices), with args.packed of the largest size that any step needs:
//
//   block_indptr 0 2 3 3   block_indices 1 2 3 ...   last_block_len 3 6 0      of the rows above
//
// Thread safety: none. Cost: linear in rows and tokens; no allocation.

#ifndef REPRISE_ATTENTION_SPECULATION_ADVANCE_STEP_H_
#define REPRISE_ATTENTION_SPECULATION_ADVANCE_STEP_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/speculation/advance_step_args.h"

struct CUstream_st;

namespace reprise {

// The batch over the arrays, on the host or on the device.
PagedBatch AdvancedBatch(const AdvanceStepArgs& args);

// Checks sizes, strides and the presence of arrays, not their content. Errors: InvalidArgument
// naming the field.
absl::Status CheckAdvanceStep(const AdvanceStepArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckAdvanceStep(args) is OK.
void AdvanceStepOnHost(const AdvanceStepArgs& args);

// Calls CheckAdvanceStep() and AdvanceStepOnHost(). Errors: InvalidArgument from the check, for
// absent row_faults, or for the first row that cannot continue; the other rows are still advanced.
absl::StatusOr<PagedBatch> AdvanceStep(const AdvanceStepArgs& args);

// Does the same over device memory: one launch, no synchronisation, no allocation, may be captured.
// Errors: InvalidArgument as from CheckAdvanceStep(), before any call of CUDA; Internal if CUDA
// refuses the launch. Only in builds with CUDA (target advance_step_cuda).
absl::Status LaunchAdvanceStep(const AdvanceStepArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_ADVANCE_STEP_H_
