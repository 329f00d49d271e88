// Finds the end of the generated text in the predicted text. The tokens that follow the match are
// proposed as drafts. For requests that supply most of their answer, such as a file with few
// changes ("predicted outputs"): Request::predicted_tokens.
//
//   PredictedText predicted(tokens);               // the predicted text, from its beginning
//   predicted.Follow(text);                        // for each new token; `text` ends with it
//   predicted.After(/*num_ahead=*/0, /*most=*/8);  // drafts
//
// If a new token is the predicted one, the position moves forward by one token. Otherwise Follow()
// searches the prediction for the longest suffix of the text, of up to kMaxCompared tokens. The new
// position is the end of this match. Among matches of equal length, Follow() uses the first match
// after the previous position, or the last match if none lies after it. If the prediction does not
// contain the newest token, there is no position, and After() returns no tokens.
//
// Thread safety: not thread-safe; one owner. Cost of Follow(): O(1) for a predicted token, and
// O(tokens * kMaxCompared) otherwise.

#ifndef REPRISE_ENGINE_SPECULATION_PREDICTED_TEXT_H_
#define REPRISE_ENGINE_SPECULATION_PREDICTED_TEXT_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace reprise {

class PredictedText {
 public:
  static constexpr int kMaxCompared = 16;

  // `tokens` must outlive this object.
  explicit PredictedText(absl::Span<const int32_t> tokens) : tokens_(tokens) {}

  // Updates the position for a new token, the last of `text`. REQUIRES: without it, `text` is the
  // text of the previous call, or empty at the first call.
  void Follow(absl::Span<const int32_t> text);

  // Returns up to `most` predicted tokens, after skipping `num_ahead` tokens. A view of the tokens
  // that the constructor received.
  absl::Span<const int32_t> After(int num_ahead, int most) const;

 private:
  absl::Span<const int32_t> tokens_;
  int next_ = 0;          // the position: index of the next predicted token
  bool is_known_ = true;  // false: the text was not found, and next_ is the previous position
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SPECULATION_PREDICTED_TEXT_H_
