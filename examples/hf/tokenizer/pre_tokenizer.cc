#include "reprise/hf/tokenizer/pre_tokenizer.h"

#include <optional>

#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// A copy whose pieces are what `make` makes of each: make(piece, begin of the piece in the old
// text).
template <typename Make>
PreTokenized Rebuilt(const PreTokenized& old, const Make& make) {
  PreTokenized result;
  for (size_t i = 0; i < old.ranges.size(); ++i) {
    const size_t begin = result.text.size();
    make(old.piece(i), old.ranges[i].first, result.text);
    if (result.text.size() > begin) result.ranges.emplace_back(begin, result.text.size());
  }
  return result;
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Create(absl::Span<const PreTokenizerStep> steps) {
  std::vector<Step> compiled;
  for (const PreTokenizerStep& step : steps) {
    if (const auto* const split = std::get_if<SplitStep>(&step)) {
      const bool is_literal = split->kind == SplitStep::kLiteral;
      REPRISE_ASSIGN_OR_RETURN(SplitPattern pattern, is_literal
                                                         ? SplitPattern::Literal(split->pattern)
                                                         : SplitPattern::Compile(split->pattern));
      compiled.push_back(Split{std::move(pattern), split->behavior, split->of});
    } else if (const auto* const replace = std::get_if<ReplaceStep>(&step)) {
      compiled.push_back(*replace);
    } else {
      compiled.push_back(std::get<SpaceStep>(step));
    }
  }
  return PreTokenizer(std::move(compiled));
}

PreTokenizer::PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

absl::StatusOr<PreTokenized> PreTokenizer::Run(std::string_view text, Place place) const {
  PreTokenized pieces = {.text = std::string(text), .ranges = {}};
  if (text.empty()) return pieces;
  pieces.ranges.emplace_back(0, text.size());
  // No removed text is before the first piece.
  bool first_is_at_beginning = place == Place::kBeginning;
  for (const Step& step : steps_) {
    if (const auto* const replace = std::get_if<ReplaceStep>(&step)) {
      pieces = Rebuilt(pieces, [&](std::string_view piece, size_t, std::string& out) {
        out += Replaced(piece, *replace);
      });
    } else if (const auto* const space = std::get_if<SpaceStep>(&step)) {
      pieces = Rebuilt(pieces, [&](std::string_view piece, size_t begin, std::string& out) {
        const bool is_asked_for =
            space->where == SpaceStep::kEverywhere || (begin == 0 && first_is_at_beginning);
        const bool is_there = piece.substr(0, space->space.size()) == space->space;
        if (is_asked_for && !is_there) out += space->space;
        out += piece;
      });
    } else {
      const Split& split = std::get<Split>(step);
      std::vector<PreTokenized::Range> ranges;
      for (size_t i = 0; i < pieces.ranges.size(); ++i) {
        REPRISE_ASSIGN_OR_RETURN(std::vector<TextPart> parts, split.pattern.Split(pieces.piece(i)));
        if (split.of == SplitStep::kOthers) {
          for (TextPart& part : parts) part.is_match = !part.is_match;
        }
        for (const std::string_view piece : Pieces(parts, split.behavior)) {
          const size_t begin = piece.data() - pieces.text.data();
          ranges.emplace_back(begin, begin + piece.size());
        }
      }
      pieces.ranges = std::move(ranges);
      first_is_at_beginning =
          first_is_at_beginning && !pieces.ranges.empty() && pieces.ranges.front().first == 0;
    }
  }
  return pieces;
}

}  // namespace reprise
