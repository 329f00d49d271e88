// The difference of computed logits and tokens from golden ones.

#ifndef TESTS_GOLDEN_GOLDEN_MEASURES_H_
#define TESTS_GOLDEN_GOLDEN_MEASURES_H_

#include "absl/types/span.h"
#include "examples/decode/prompt.h"
#include "tests/golden/golden.h"

namespace reprise {

// The largest |got - expected| of the logits that are kept; infinity if `got` does not have as many
// rows of vocab_size logits, or if any of its logits is not finite, kept or not.
double MaxError(absl::Span<const float> got, const GoldenLogits& expected);

// sqrt(mean((got - expected)^2)); infinity likewise.
double RmsError(absl::Span<const float> got, const GoldenLogits& expected);

// The median over rows of a row's rms error; the mean of the two middle ones for an even number of
// rows. Infinity likewise.
double MedianError(absl::Span<const float> got, const GoldenLogits& expected);

// Number of tokens, from the start, that are equal to the golden ones.
int NumEqualTokens(absl::Span<const int32_t> got, const GoldenTrack& golden);

// Number of tokens before the first one with a margin below `least`. Rounding cannot change the
// choice of these tokens.
int NumDecidedTokens(const GoldenPrompt& golden, float least);

}  // namespace reprise

#endif  // TESTS_GOLDEN_GOLDEN_MEASURES_H_
