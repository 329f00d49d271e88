// Where a text is in another one that was expected of it: what may come next are the tokens that follow
// there. For requests that say what their answer will probably be, such as a file with few changes
// ("predicted outputs"): Request::predicted_tokens.
//
//   PredictedText predicted(tokens);             // which begin as the text is expected to
//   predicted.Follow(text);                      // of each new token: the text so far
//   predicted.After(/*num_ahead=*/0, /*most=*/8);   // drafts
//
// While the text goes on as expected, so does the place. When it does not, the place is behind the longest
// end of the text, of up to kMostCompared tokens, that occurs in the expected one; of several the next one
// behind the place before, else the last. Where the newest token does not occur there is none.
//
// Thread safety: none; one owner. Cost of Follow(): O(1), and O(tokens * kMostCompared) where the text
// goes on otherwise.

#ifndef REPRISE_ENGINE_SPECULATION_PREDICTED_TEXT_H_
#define REPRISE_ENGINE_SPECULATION_PREDICTED_TEXT_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace reprise {

class PredictedText {
 public:
  static constexpr int kMostCompared = 16;

  // `tokens` must outlive it.
  explicit PredictedText(absl::Span<const int32_t> tokens) : tokens_(tokens) {}

  // `text` has a new token, its last one; before, it was that of the last call, or empty.
  void Follow(absl::Span<const int32_t> text);

  // Up to `most` tokens that are expected behind the next `num_ahead`. Valid as long as the tokens.
  absl::Span<const int32_t> After(int num_ahead, int most) const;

 private:
  absl::Span<const int32_t> tokens_;
  int next_ = 0;          // the place: the token that is expected
  bool is_known_ = true;  // else next_ is the last place
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SPECULATION_PREDICTED_TEXT_H_
