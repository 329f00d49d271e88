// What a step has computed, as a scheduler takes it.

#ifndef ENGINE_STEP_OUTPUT_H_
#define ENGINE_STEP_OUTPUT_H_

#include <cstdint>

#include "absl/types/span.h"
#include "runner/sampling/log_probs_view.h"

namespace reprise {

struct StepOutput {
  // One per row, in the batch's order. Negative: the row has none.
  absl::Span<const int32_t> tokens;
  // By row: of the row's token, or of its ScheduledRow::next_token. Undefined for rows whose
  // sequences did not ask.
  RowLogProbsView log_probs = {};
  // Of the tokens before the last of rows with RowLogits::kAll, row after row; each of the token
  // that follows in its row.
  RowLogProbsView earlier_log_probs = {};
};

}  // namespace reprise

#endif  // ENGINE_STEP_OUTPUT_H_
