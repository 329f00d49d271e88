// Computes ALiBi slopes for any number of heads.
//
//   const std::vector<float> slopes = AlibiSlopes(12);   // AttentionParams::alibi_slopes
//
// If the number of heads n is a power of two, head h (from 0) has slope 2^(-8 (h + 1) / n).
// Otherwise let `power` be the largest power of two below n. The first `power` heads use that
// formula with n = power. The h-th of the remaining heads has slope 2^(-4 (2 h + 1) / power): every
// other slope of 2 * power heads. Sources: "Train Short, Test Long" (Press et al., 2022) and its
// code; vLLM and Hugging Face use the same formula.
//
// A pure function.

#ifndef REPRISE_ATTENTION_ALIBI_SLOPES_H_
#define REPRISE_ATTENTION_ALIBI_SLOPES_H_

#include <vector>

namespace reprise {

// A rank that holds part of the heads takes its part of the whole model's slopes. REQUIRES:
// num_heads >= 1.
std::vector<float> AlibiSlopes(int num_heads);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_ALIBI_SLOPES_H_
