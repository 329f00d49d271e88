// Keeps, slot by slot, the hidden state that the slot's newest token was chosen from: what heads read
// in the next step (runner/speculation/draft_heads.h).
//
//   LaunchKeepHidden({.hidden = hidden, .num_places = 80, .row_bytes = 8192, .slot_hidden = kept,
//                     .num_slots = 64, .sample_slot = arrays.sample_slot, .place = last_place,
//                     .num_rows = 16}, stream);
//
// Row r of the step, of slot sample_slot[r], takes row place[r] of `hidden`; without `place`, as in
// steps without drafts, row r. Rows whose slot or place is out of range keep nothing, and their slots
// stay as they are.
//
// Thread safety: none; one caller at a time for the same slots. On a GPU one launch, which may be
// captured. No allocation.

#ifndef RUNNER_SPECULATION_KEEP_HIDDEN_H_
#define RUNNER_SPECULATION_KEEP_HIDDEN_H_

#include "absl/status/status.h"
#include "runner/speculation/keep_hidden_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks sizes and the presence of arrays, not their content. Errors: InvalidArgument naming the
// field.
absl::Status CheckKeepHidden(const KeepHiddenArgs& args);

// Over host memory. REQUIRES: CheckKeepHidden(args) is OK.
void KeepHiddenOnHost(const KeepHiddenArgs& args);

// The same over device memory. Errors: those of the check; Internal if CUDA refuses the launch.
// Only in builds with CUDA (target keep_hidden_cuda).
absl::Status LaunchKeepHidden(const KeepHiddenArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // RUNNER_SPECULATION_KEEP_HIDDEN_H_
