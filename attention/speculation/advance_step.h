// Advances a batch from one decode step to the next without the host (V5). Builds the arrays of the
// next step from the tokens that were sampled on the device.
//
// Rows of 1 and 5 new tokens (a prefill), at seq_lens 18 and 5, block_size 16:
//
//   AdvanceStepArgs args = {.seq_lens = {18, 5, 0}, .sampled = {70, 71, -}, ...};   // 1 padded row
//   token_ids 70 71   positions 18 5   seq_lens 19 6 0   query_start_loc 0 1 2 2
//
// Each live row gets one new token, so a prefill becomes a decode. The tokens after the live tokens
// become inert. Block tables are read in place: reserve blocks for the new tokens before the call.
// The output arrays may be the arrays of the previous step (in place). Engines that keep sequences
// in slots use refill instead, which applies deltas from the host.
//
// A row that cannot continue becomes inert (seq_len 0, no token) and is reported
// (base/row_fault.h):
//   kTableRow  the row's table_row is not in the table
//   kLength    the row is at the end of its context or of its table, or its seq_len is negative
//   kToken     the sampled token is negative, for example after a chunk of a prompt that is not the
//              last chunk
//   kNoBlock   the table has no block for the new token
//   kNoRoom    the packed table has no room for the row's blocks; then all later live rows have
//              this fault too
// Padded rows stay padded.
//
// For kernels that read packed tables, set args.packed, with room for the largest step. The call
// then also writes the packed table of the next step (as vLLM V0's advance_step over padded
// paged_kv_indices). For the rows above:
//
//   block_indptr 0 2 3 3   block_indices 1 2 3 ...   last_block_len 3 6 0
//
// Thread safety: not thread-safe. Cost: linear in rows and tokens; no allocation.

#ifndef REPRISE_ATTENTION_SPECULATION_ADVANCE_STEP_H_
#define REPRISE_ATTENTION_SPECULATION_ADVANCE_STEP_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/speculation/advance_step_args.h"

struct CUstream_st;

namespace reprise {

// Returns the batch over the arrays, on the host or on the device.
PagedBatch AdvancedBatch(const AdvanceStepArgs& args);

// Checks sizes, strides and the presence of arrays, but not the content of arrays.
// Errors: InvalidArgument that names the field.
absl::Status CheckAdvanceStep(const AdvanceStepArgs& args);

// Advances the step in host memory, like LaunchAdvanceStep() on the device.
// REQUIRES: CheckAdvanceStep(args) is OK.
void AdvanceStepOnHost(const AdvanceStepArgs& args);

// Calls CheckAdvanceStep() and AdvanceStepOnHost(), and returns the batch.
// Errors: InvalidArgument from the check, for absent row_faults, or for the first row that cannot
// continue. If a row cannot continue, all other rows are still advanced.
absl::StatusOr<PagedBatch> AdvanceStep(const AdvanceStepArgs& args);

// Advances the step in device memory. May be captured.
// Errors: InvalidArgument from CheckAdvanceStep(), before any CUDA call; Internal if the launch
// fails. Cost: one launch. Does not synchronise or allocate. Only in builds with CUDA (target
// advance_step_cuda).
absl::Status LaunchAdvanceStep(const AdvanceStepArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_ADVANCE_STEP_H_
