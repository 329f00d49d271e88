// What is done to a text before it is cut into pieces: the "normalizer" of a tokenizer.json.
//
//   // Llama 2: a text begins with a space, and spaces are "▁".
//   Normalize({PrependStep{"▁"}, ReplaceStep{" ", "▁"}}, "a b") == "▁a▁b"
//
// Thread safety: pure functions of values.

#ifndef EXAMPLES_TOKENIZER_TEXT_NORMALIZER_H_
#define EXAMPLES_TOKENIZER_TEXT_NORMALIZER_H_

#include <string>
#include <string_view>
#include <variant>

#include "absl/types/span.h"

namespace reprise {

// Put before a text that is not empty.
struct PrependStep {
  std::string text = {};
};

// Every occurrence, from left to right, none twice.
struct ReplaceStep {
  std::string what = {};  // not empty
  std::string by = {};
};

// Unicode's normal form C.
struct ComposeStep {};

using NormalizerStep = std::variant<PrependStep, ReplaceStep, ComposeStep>;

// The steps in their order. REQUIRES: `text` is UTF-8. Cost: linear in the text for each step.
std::string Normalize(absl::Span<const NormalizerStep> steps, std::string_view text);

std::string Replaced(std::string_view text, const ReplaceStep& step);

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_TEXT_NORMALIZER_H_
