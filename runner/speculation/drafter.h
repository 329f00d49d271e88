// The interface of a drafter that the caller implements. Propose() enqueues device work before the
// model's forward pass; the runner captures this work in the graph of a step.
//
//   class Repeat : public Drafter {      // proposes the slot's last token for each draft
//     absl::Status Propose(const DraftStep& step) override {
//       return LaunchRepeat(step.slots, step.arrays, step.num_rows, step.stream);
//     }
//   };
//
// For each row r with num_proposed[r] > 0, Propose() writes num_proposed[r] token ids in [0,
// vocab_size) to token_ids, starting at query_start_loc[r] + 1. Entries that it does not write are
// 0. The quality of drafts affects the number of tokens per step, but not which tokens a sequence
// gets (with DraftAcceptance::kRejection, not their distribution).
//
// Thread safety: one step at a time.

#ifndef REPRISE_RUNNER_SPECULATION_DRAFTER_H_
#define REPRISE_RUNNER_SPECULATION_DRAFTER_H_

#include "absl/status/status.h"
#include "reprise/runner/slots/slot_state.h"
#include "reprise/runner/slots/step_arrays.h"

struct CUstream_st;

namespace reprise {

struct DraftStep {
  SlotState slots;     // state before the step: last_token, sample_index, history below seq_len
  StepArrays arrays;   // the step's arrays, after refill
  int num_rows = 0;    // padded
  int max_drafts = 0;  // maximum number of drafts per row of this step; constant per graph
  int vocab_size = 0;
  CUstream_st* stream = nullptr;  // LibTorch's current stream of the device; null on the CPU
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  // Enqueues the work for a step of this shape. May be called during capture. Errors fail the step.
  virtual absl::Status Propose(const DraftStep& step) = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_DRAFTER_H_
