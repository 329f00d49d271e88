// Proposes drafts on the device: device work that the runner captures in the graph of a step,
// before the model's forward pass.
//
//   class Repeat : public Drafter {      // proposes the slot's last token, again and again
//     absl::Status Propose(const DraftStep& step) override {
//       return LaunchRepeat(step.slots, step.arrays, step.num_rows, step.stream);
//     }
//   };
//
// For each row r with num_proposed[r] > 0 a drafter writes so many ids in [0, vocab_size) to
// token_ids, from query_start_loc[r] + 1 on; what it leaves is 0. Whether a draft is good decides
// how fast the sequence gets on, never its text.
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
  SlotState slots;     // as before the step: last_token, sample_index, history below seq_len
  StepArrays arrays;   // of the step; refilled
  int num_rows = 0;    // padded
  int max_drafts = 0;  // of a row of this step: a constant of its graph
  int vocab_size = 0;
  CUstream_st* stream = nullptr;  // of the device, LibTorch's current one; null on the CPU
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  // Enqueues the work for a step of this shape; may be captured. Errors fail the step.
  virtual absl::Status Propose(const DraftStep& step) = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_DRAFTER_H_
