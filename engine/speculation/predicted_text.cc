#include "reprise/engine/speculation/predicted_text.h"

#include <algorithm>

#include "glog/logging.h"

namespace reprise {

void PredictedText::Follow(absl::Span<const int32_t> text) {
  CHECK(!text.empty());
  const int num_tokens = static_cast<int>(tokens_.size());
  if (is_known_ && next_ < num_tokens && tokens_[next_] == text.back()) {
    ++next_;
    return;
  }
  const int most = std::min(kMaxCompared, static_cast<int>(text.size()));
  int longest = 0;
  int place = next_;
  for (int end = 1; end <= num_tokens; ++end) {
    int num_equal = 0;
    while (num_equal < std::min(most, end) &&
           tokens_[end - 1 - num_equal] == text[text.size() - 1 - num_equal]) {
      ++num_equal;
    }
    // Prefers the longest match, then the first match after next_, then the last match.
    const bool is_better = num_equal == longest && place <= next_;
    if (num_equal == 0 || (num_equal < longest || (num_equal == longest && !is_better))) continue;
    longest = num_equal;
    place = end;
  }
  is_known_ = longest > 0;
  next_ = place;
}

absl::Span<const int32_t> PredictedText::After(int num_ahead, int most) const {
  const int64_t first = int64_t{next_} + num_ahead;
  if (!is_known_ || most <= 0 || first >= static_cast<int64_t>(tokens_.size())) return {};
  return tokens_.subspan(first, most);
}

}  // namespace reprise
