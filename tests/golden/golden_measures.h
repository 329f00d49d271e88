// How far computed logits and tokens are from golden ones.

#ifndef TESTS_GOLDEN_GOLDEN_MEASURES_H_
#define TESTS_GOLDEN_GOLDEN_MEASURES_H_

#include "absl/types/span.h"
#include "examples/llama/prompt.h"
#include "tests/golden/golden.h"

namespace reprise {

// The largest |got - expected| of the logits that are kept; infinity if `got` has not as many rows
// of vocab_size logits, or if anything of it is not finite, kept or not.
double MaxError(absl::Span<const float> got, const GoldenLogits& expected);

// sqrt(mean((got - expected)^2)); infinity likewise.
double RmsError(absl::Span<const float> got, const GoldenLogits& expected);

// Tokens from the start that agree with the golden ones.
int NumEqualTokens(absl::Span<const int32_t> got, const GoldenTrack& golden);

// Tokens before the first that was chosen by a margin below `least`: up to there, rounding cannot
// have chosen another.
int NumDecidedTokens(const GoldenPrompt& golden, float least);

}  // namespace reprise

#endif  // TESTS_GOLDEN_GOLDEN_MEASURES_H_
