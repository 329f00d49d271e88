#include "examples/tokenizer/split_behavior.h"

namespace reprise {
namespace {

// Whether a part goes to the piece that the part before it ended.
bool JoinsPrevious(const TextPart& previous, const TextPart& part, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
    case SplitBehavior::kRemoved:
      return false;
    case SplitBehavior::kMergedWithPrevious:
      return part.is_match && !previous.is_match;
    case SplitBehavior::kMergedWithNext:
      return previous.is_match && !part.is_match;
    case SplitBehavior::kContiguous:
      return previous.is_match == part.is_match;
  }
  return false;
}

}  // namespace

std::vector<std::string_view> Pieces(absl::Span<const TextPart> parts, SplitBehavior behavior) {
  std::vector<std::string_view> pieces;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string_view text = parts[i].text;
    if (behavior == SplitBehavior::kRemoved && parts[i].is_match) continue;
    if (i > 0 && JoinsPrevious(parts[i - 1], parts[i], behavior)) {
      pieces.back() = {pieces.back().data(), pieces.back().size() + text.size()};
    } else {
      pieces.push_back(text);
    }
  }
  return pieces;
}

}  // namespace reprise
