// The greedy output of transformers with the project's own model, in float32.
//
// tests/goldens/jargon-llama/greedy.json: a list of prompts with their tokens, and texts.
//
//   ExpectJargonTexts({.device = DeviceChoice::kCpu}, texts, {0, 5, 2});

#ifndef TESTS_GOLDEN_JARGON_GOLDEN_H_
#define TESTS_GOLDEN_JARGON_GOLDEN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/decode/options.h"
#include "examples/decode/prompt.h"
#include "nlohmann/json_fwd.hpp"

namespace reprise {

struct JargonText {
  std::string prompt;
  TokenList prompt_tokens;
  TokenList tokens;  // up to 96; fewer end with the end of text
  std::string text;
};

// Errors: NotFound if the test's data file is missing; InvalidArgument if it is not as described.
absl::StatusOr<std::vector<JargonText>> LoadJargonTexts();

// Continues the prompts of `order`, indices into `texts`, by running decode with `options`, and
// expects the golden tokens and texts. Returns the statistics of the run.
nlohmann::json ExpectJargonTexts(DecodeOptions options, absl::Span<const JargonText> texts,
                                 absl::Span<const int> order);

}  // namespace reprise

#endif  // TESTS_GOLDEN_JARGON_GOLDEN_H_
