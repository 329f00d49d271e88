// Stores, for each slot, the hidden states of its last tokens. Heads with attention layers read
// these states when they process the tokens that follow (runner/drafting/head_model.h). Other heads
// read the state of one token in the next step (runner/drafting/head_drafts.h).
//
//   LaunchKeepStates({.hidden = hidden, .num_hidden = 80, .row_bytes = 8192,
//                     .positions = arrays.positions, .table_row = arrays.table_row,
//                     .query_start_loc = arrays.query_start_loc, .num_tokens = 80, .num_rows = 16,
//                     .states = states, .state_positions = positions, .num_slots = 64,
//                     .num_kept = 32}, stream);
//
// The state of a token at position p is stored at index p % num_kept of its slot, and
// state_positions holds p there. If a row has more tokens than num_kept, the states of its last
// num_kept tokens are kept. If `hidden` has one state per row instead of one per token, last_token
// is the token that the state belongs to, and `place` is the row of `hidden`.
//
// Thread safety: none. One caller at a time for the same slots; each slot has at most one row. On a
// GPU: one launch, which may be captured. Does not allocate.

#ifndef REPRISE_RUNNER_SPECULATION_KEEP_STATES_H_
#define REPRISE_RUNNER_SPECULATION_KEEP_STATES_H_

#include "absl/status/status.h"
#include "reprise/runner/speculation/keep_states_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks sizes and the presence of arrays, not their content. Errors: InvalidArgument naming the
// field.
absl::Status CheckKeepStates(const KeepStatesArgs& args);

// Runs on the CPU, over host memory. REQUIRES: CheckKeepStates(args) is OK.
void KeepStatesOnHost(const KeepStatesArgs& args);

// Enqueues the same work as KeepStatesOnHost(), over device memory. Errors: as CheckKeepStates();
// Internal if CUDA rejects the launch. Only in builds with CUDA (target keep_states_cuda).
absl::Status LaunchKeepStates(const KeepStatesArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_KEEP_STATES_H_
