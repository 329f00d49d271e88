// Unstable: any version may change this header (docs/embedding.md).
//
// Cuts a text into the pieces that are encoded one by one: the "pre_tokenizer" of a tokenizer.json,
// as a list of three kinds of steps.
//
//   // Metaspace, as Mistral has it: a text begins with a space, and spaces are "▁".
//   PreTokenizer::Create({ReplaceStep{" ", "▁"}, SpaceStep{"▁", SpaceStep::kFirst}});
//   // Llama 3: the matches of a regular expression, and the text between them.
//   PreTokenizer::Create({SplitStep{.pattern = R"( ?\p{L}+|\s+)"}});
//
// Without steps a text is one piece. Thread safety: as any const object.

#ifndef REPRISE_HF_TOKENIZER_PRE_TOKENIZER_H_
#define REPRISE_HF_TOKENIZER_PRE_TOKENIZER_H_

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/hf/tokenizer/split_pattern.h"
#include "reprise/hf/tokenizer/text_normalizer.h"

namespace reprise {

// Put before pieces that do not begin with it.
struct SpaceStep {
  enum Where {
    kEverywhere,
    kFirst,  // before the piece at the very beginning of what is encoded
  };
  std::string space = {};  // not empty
  Where where = kEverywhere;
};

struct SplitStep {
  enum Kind { kExpression, kLiteral };
  enum Of { kMatches, kOthers };  // kOthers: the text between matches counts as the matches
  std::string pattern = {};
  Kind kind = kExpression;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  Of of = kMatches;
};

using PreTokenizerStep = std::variant<ReplaceStep, SpaceStep, SplitStep>;

// A text after the changes of the steps, and its pieces.
struct PreTokenized {
  using Range = std::pair<size_t, size_t>;  // half open

  std::string text = {};
  std::vector<Range> ranges = {};  // ascending, none empty

  std::string_view piece(size_t i) const {
    return std::string_view(text).substr(ranges[i].first, ranges[i].second - ranges[i].first);
  }
};

class PreTokenizer {
 public:
  // The place of a text in the encoded input: added tokens may come before it.
  enum class Place { kBeginning, kLater };

  // Errors: InvalidArgument if a pattern is invalid.
  static absl::StatusOr<PreTokenizer> Create(absl::Span<const PreTokenizerStep> steps);

  // REQUIRES: `text` is UTF-8. Errors: those of SplitPattern::Split(). Cost: linear in the text,
  // for patterns whose matching is linear.
  absl::StatusOr<PreTokenized> Run(std::string_view text, Place place) const;

 private:
  struct Split {
    SplitPattern pattern;
    SplitBehavior behavior;
    SplitStep::Of of;
  };
  using Step = std::variant<ReplaceStep, SpaceStep, Split>;

  explicit PreTokenizer(std::vector<Step> steps);

  std::vector<Step> steps_;
};

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_PRE_TOKENIZER_H_
