// Arguments of the verification of drafts (runner/speculation/verify_drafts.h), and the work on one
// row, shared by the host and device forms.

#ifndef RUNNER_SPECULATION_VERIFY_DRAFTS_ARGS_H_
#define RUNNER_SPECULATION_VERIFY_DRAFTS_ARGS_H_

#include <cstdint>

#include "runner/slots/slot_state.h"
#include "runner/slots/step_arrays.h"

namespace reprise {

struct VerifyDraftsArgs {
  // [logits rows of the step] what the sequence itself chooses at each place: Sample() with
  // sample_offset. kNotSampled, kNanRow or a token.
  const int32_t* chosen = nullptr;
  SlotState slots;
  StepArrays arrays;
  int num_rows = 0;    // padded
  int max_drafts = 0;  // of the runner: new_tokens has 1 + max_drafts columns

  // Results; on a GPU they may be mapped host memory.
  int32_t* tokens = nullptr;      // [num_rows] the row's last new token, kNotSampled or kNanRow
  int32_t* num_new = nullptr;     // [num_rows] new tokens; 0 with kNotSampled and kNanRow
  int32_t* new_tokens = nullptr;  // [num_rows, 1 + max_drafts] the first num_new
};

}  // namespace reprise

#endif  // RUNNER_SPECULATION_VERIFY_DRAFTS_ARGS_H_
