// The result of a step, without LibTorch.

#ifndef REPRISE_RUNNER_STEP_RESULT_H_
#define REPRISE_RUNNER_STEP_RESULT_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/runner/sampling/log_probs_view.h"

namespace reprise {

// The spans are memory of the runner: valid until the second Launch() after the step's Await().
struct StepResult {
  // One per row, in the batch's order: the row's newest token. Negative if there is none:
  // kNotSampled for rows with RowOutput::kNone, kNanRow for rows whose logits leave nothing to
  // choose; the sequences of the latter must leave.
  absl::Span<const int32_t> tokens;
  // For steps with drafts, else empty: the number of new tokens of each row, and the tokens, in rows
  // of `new_tokens_stride`. See NewTokens().
  absl::Span<const int32_t> num_new_tokens = {};
  absl::Span<const int32_t> new_tokens = {};
  int new_tokens_stride = 0;
  // By row: of the token that was chosen, or of ScheduledRow::next_token. Undefined for rows whose
  // sequences did not ask. Empty if the runner computes none (ModelRunnerOptions::logits).
  RowLogProbsView log_probs = {};
  // The same for the tokens before the last of each row, where FirstEarlierLogits() finds them: each
  // entry belongs to the token that follows in its row. Undefined for rows with drafts.
  RowLogProbsView earlier_log_probs = {};
  GraphDecision decision = {};
  int64_t step = -1;  // the step's number, as Launch() returned it

  // The new tokens of a row, in order: its accepted drafts, and one more token. Empty if the row has
  // no token.
  absl::Span<const int32_t> NewTokens(size_t row) const {
    if (num_new_tokens.empty()) return tokens.subspan(row, tokens[row] < 0 ? 0 : 1);
    return new_tokens.subspan(row * static_cast<size_t>(new_tokens_stride),
                              static_cast<size_t>(num_new_tokens[row]));
  }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_RESULT_H_
