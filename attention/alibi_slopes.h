// ALiBi's slopes by formula, for any number of heads.
//
//   const std::vector<float> slopes = AlibiSlopes(12);   // AttentionParams::alibi_slopes
//
// With n heads, n a power of two, head h (from 0) has 2^(-8 (h + 1) / n). Otherwise the largest
// power of two below n is taken so, and the remaining heads have every other slope of twice as many
// heads: h-th of them 2^(-4 (2 h + 1) / power). From "Train Short, Test Long" (Press et al., 2022)
// and its code; vLLM's and Hugging Face's are the same.
//
// Pure function.

#ifndef ATTENTION_ALIBI_SLOPES_H_
#define ATTENTION_ALIBI_SLOPES_H_

#include <vector>

namespace reprise {

// REQUIRES: num_heads >= 1. Ranks that hold a part of the heads take their part of the whole
// model's slopes.
std::vector<float> AlibiSlopes(int num_heads);

}  // namespace reprise

#endif  // ATTENTION_ALIBI_SLOPES_H_
