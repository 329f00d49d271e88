// Unstable: any version may change this header (docs/embedding.md).
//
// Changes a text before it is cut into pieces: the "normalizer" of a tokenizer.json.
//
//   // Llama 2: a text begins with a space, and spaces are "▁".
//   Normalize({PrependStep{"▁"}, ReplaceStep{" ", "▁"}}, "a b") == "▁a▁b"
//
// Thread safety: pure functions of values.

#ifndef REPRISE_HF_TOKENIZER_TEXT_NORMALIZER_H_
#define REPRISE_HF_TOKENIZER_TEXT_NORMALIZER_H_

#include <string>
#include <string_view>
#include <variant>

#include "absl/types/span.h"

namespace reprise {

// Put before a text that is not empty.
struct PrependStep {
  std::string text = {};
};

// Replaces every occurrence, from left to right, without overlap.
struct ReplaceStep {
  std::string what = {};  // not empty
  std::string by = {};
};

// Unicode's normal form C (Unicode Standard Annex 15), by utf8proc and its version of Unicode:
// characters and their combining marks in the one order and the shortest form that represent the
// same text, as "e" and U+0301 become "é". Linear, except n log n for n combining marks on one
// character.
struct ComposeStep {};

using NormalizerStep = std::variant<PrependStep, ReplaceStep, ComposeStep>;

// The steps in their order. REQUIRES: `text` is UTF-8. Cost: linear in the text for each step.
std::string Normalize(absl::Span<const NormalizerStep> steps, std::string_view text);

std::string Replaced(std::string_view text, const ReplaceStep& step);

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_TEXT_NORMALIZER_H_
