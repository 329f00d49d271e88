// Log-probabilities of a step in host memory. Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_SAMPLING_LOG_PROBS_VIEW_H_
#define REPRISE_RUNNER_SAMPLING_LOG_PROBS_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace reprise {

// One entry per row (runner/sampling/log_probs.h). Entries that a row does not request are
// undefined. The runner owns the memory, which is valid as long as StepResult::tokens.
struct RowLogProbsView {
  absl::Span<const float> token_log_probs;  // [rows] of the row's token
  absl::Span<const int32_t> token_ranks;    // [rows] 1 + the number of tokens with a larger logit
  absl::Span<const int32_t> top_tokens;     // [rows, max_top] most probable tokens, in order
  absl::Span<const float> top_log_probs;    // [rows, max_top]
  int max_top = 0;                          // columns: LogitsOptions::max_log_probs

  absl::Span<const int32_t> top_tokens_of(int row) const {
    return top_tokens.subspan(static_cast<size_t>(row) * max_top, max_top);
  }
  absl::Span<const float> top_log_probs_of(int row) const {
    return top_log_probs.subspan(static_cast<size_t>(row) * max_top, max_top);
  }
  // Returns the view of rows [first, first + count). REQUIRES: these rows exist.
  RowLogProbsView Rows(int first, int count) const {
    return {token_log_probs.subspan(first, count), token_ranks.subspan(first, count),
            top_tokens.subspan(static_cast<size_t>(first) * max_top,
                               static_cast<size_t>(count) * max_top),
            top_log_probs.subspan(static_cast<size_t>(first) * max_top,
                                  static_cast<size_t>(count) * max_top),
            max_top};
  }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOG_PROBS_VIEW_H_
