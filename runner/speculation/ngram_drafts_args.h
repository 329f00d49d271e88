// Arguments of drafts from a sequence's own tokens (runner/speculation/ngram_drafts.h), and the search
// of one row, shared by the host and device forms.

#ifndef RUNNER_SPECULATION_NGRAM_DRAFTS_ARGS_H_
#define RUNNER_SPECULATION_NGRAM_DRAFTS_ARGS_H_

#include <cstdint>

#include "runner/slots/slot_state.h"
#include "runner/slots/step_arrays.h"
#include "runner/speculation/speculation_options.h"

namespace reprise {

struct NgramDraftsArgs {
  SlotState slots;    // history, last_token
  StepArrays arrays;  // of the step, refilled: table_row, context_lens, query_start_loc, num_proposed;
                      // token_ids written
  int num_rows = 0;   // padded
  int min_ngram = 1;
  int max_ngram = 4;
};

}  // namespace reprise

#endif  // RUNNER_SPECULATION_NGRAM_DRAFTS_ARGS_H_
