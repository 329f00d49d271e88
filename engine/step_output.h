// What a step has computed, as a scheduler takes it.

#ifndef ENGINE_STEP_OUTPUT_H_
#define ENGINE_STEP_OUTPUT_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "runner/sampling/log_probs_view.h"

namespace reprise {

struct StepOutput {
  // One per row, in the batch's order: the newest. Negative: the row has none.
  absl::Span<const int32_t> tokens;
  // By row: of the row's token, or of its ScheduledRow::next_token. Undefined for rows whose
  // sequences did not ask.
  RowLogProbsView log_probs = {};
  // Of the tokens before the last of rows with RowLogits::kAll, row after row; each of the token
  // that follows in its row.
  RowLogProbsView earlier_log_probs = {};
  // Of steps with drafts, else empty: how many new tokens each row has, and those, in rows of
  // `stride`. See NewTokens().
  absl::Span<const int32_t> num_new_tokens = {};
  absl::Span<const int32_t> new_tokens = {};
  int stride = 0;

  // A row's new tokens, in order: one, or with drafts one more than were accepted. Empty for rows
  // that have none.
  absl::Span<const int32_t> NewTokens(size_t row) const {
    if (num_new_tokens.empty()) return tokens.subspan(row, tokens[row] < 0 ? 0 : 1);
    return new_tokens.subspan(row * static_cast<size_t>(stride),
                              static_cast<size_t>(num_new_tokens[row]));
  }
};

}  // namespace reprise

#endif  // ENGINE_STEP_OUTPUT_H_
