// The slopes of ALiBi (Press, Smith and Lewis 2022) by their formula, for any number of heads.
//
//   std::vector<float> slopes = AlibiSlopes(32);   // copy to the device of the queries
//   params.alibi_slopes = ...;
//
// For a power of two n, head h (from 0) gets 2^(-8 (h + 1) / n). For others, as in the authors'
// code: the slopes of the power of two below, then every other one of the power of two above.
//
// Pure functions. Thread safety: const data.

#ifndef ATTENTION_ALIBI_H_
#define ATTENTION_ALIBI_H_

#include <vector>

namespace reprise {

// REQUIRES: num_q_heads >= 0.
std::vector<float> AlibiSlopes(int num_q_heads);

}  // namespace reprise

#endif  // ATTENTION_ALIBI_H_
