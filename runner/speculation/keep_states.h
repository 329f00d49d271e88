// Keeps, slot by slot, the hidden states of the last tokens: what heads that attend read when they see
// the tokens behind them (runner/head_model.h), and other heads in the next step, of one token
// (runner/head_drafts.h).
//
//   LaunchKeepStates({.hidden = hidden, .num_hidden = 80, .row_bytes = 8192,
//                     .positions = arrays.positions, .table_row = arrays.table_row,
//                     .query_start_loc = arrays.query_start_loc, .num_tokens = 80, .num_rows = 16,
//                     .states = states, .state_positions = positions, .num_slots = 64,
//                     .num_kept = 32}, stream);
//
// The state of a token at position p is that of index p % num_kept of its slot, and state_positions
// says p there; of a row with more tokens the last num_kept are kept. Where there is a state for each
// row, not for each token, last_token says which token it is of, and place which of hidden it is.
//
// Thread safety: none; one caller at a time for the same slots, which each have one row. On a GPU one
// launch, which may be captured. No allocation.

#ifndef RUNNER_SPECULATION_KEEP_STATES_H_
#define RUNNER_SPECULATION_KEEP_STATES_H_

#include "absl/status/status.h"
#include "runner/speculation/keep_states_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks sizes and the presence of arrays, not their content. Errors: InvalidArgument naming the
// field.
absl::Status CheckKeepStates(const KeepStatesArgs& args);

// Over host memory. REQUIRES: CheckKeepStates(args) is OK.
void KeepStatesOnHost(const KeepStatesArgs& args);

// The same over device memory. Errors: those of the check; Internal if CUDA refuses the launch.
// Only in builds with CUDA (target keep_states_cuda).
absl::Status LaunchKeepStates(const KeepStatesArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // RUNNER_SPECULATION_KEEP_STATES_H_
