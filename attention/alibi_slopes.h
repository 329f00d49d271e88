// Computes ALiBi slopes for any number of heads.
//
//   const std::vector<float> slopes = AlibiSlopes(12);   // AttentionParams::alibi_slopes
//
// If n, the number of heads, is a power of two, head h (from 0) has slope 2^(-8 (h + 1) / n).
// Otherwise the first `power` heads, the largest power of two below n, use that formula with n =
// power, and the h-th of the remaining heads has 2^(-4 (2 h + 1) / power), every other slope of
// twice as many heads. From "Train Short, Test Long" (Press et al., 2022) and its code; vLLM and
// Hugging Face use the same formula.
//
// Pure function.

#ifndef REPRISE_ATTENTION_ALIBI_SLOPES_H_
#define REPRISE_ATTENTION_ALIBI_SLOPES_H_

#include <vector>

namespace reprise {

// REQUIRES: num_heads >= 1. A rank that holds part of the heads takes its part of the slopes of the
// whole model.
std::vector<float> AlibiSlopes(int num_heads);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_ALIBI_SLOPES_H_
