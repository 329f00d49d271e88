// The result of a step. Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_STEP_RESULT_H_
#define REPRISE_RUNNER_STEP_RESULT_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/runner/sampling/log_probs_view.h"

namespace reprise {

// The runner owns the memory of the spans: valid until the second Launch() after the step's
// Await().
struct StepResult {
  // One per row, in the batch's order: the row's newest token. Negative if there is none:
  // kNotSampled for rows with RowOutput::kNone, and kNanRow for rows whose logits leave no token to
  // choose. The sequences of rows with kNanRow must leave.
  absl::Span<const int32_t> tokens;
  // For steps with drafts, otherwise empty: the number of new tokens per row, and the tokens, in
  // rows of `new_tokens_stride`. See NewTokens().
  absl::Span<const int32_t> num_new_tokens = {};
  absl::Span<const int32_t> new_tokens = {};
  int new_tokens_stride = 0;
  // Log-probabilities by row, of the sampled token or of ScheduledRow::next_token. Undefined for
  // rows whose sequence did not request them. Empty if the runner computes none
  // (ModelRunnerOptions::logits).
  RowLogProbsView log_probs = {};
  // Log-probabilities for the tokens before the last of each row, at the indices of
  // FirstEarlierLogits(): each entry belongs to the token that follows in its row. Undefined for
  // rows with drafts, and for rows whose sequence did not request them.
  RowLogProbsView earlier_log_probs = {};
  GraphDecision decision = {};
  int64_t step = -1;  // the step's number, as returned by Launch()

  // Returns the new tokens of a row, in order: its accepted drafts, and one more token. Empty if
  // the row has no token.
  absl::Span<const int32_t> NewTokens(size_t row) const {
    if (num_new_tokens.empty()) return tokens.subspan(row, tokens[row] < 0 ? 0 : 1);
    return new_tokens.subspan(row * static_cast<size_t>(new_tokens_stride),
                              static_cast<size_t>(num_new_tokens[row]));
  }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_RESULT_H_
