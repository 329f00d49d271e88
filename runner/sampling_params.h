// How a sequence's next token is chosen from its logits.

#ifndef RUNNER_SAMPLING_PARAMS_H_
#define RUNNER_SAMPLING_PARAMS_H_

#include <cstdint>

namespace reprise {

// The default is greedy: the token of the largest logit, the lowest id among equals. Otherwise, in
// this order: logits are divided by the temperature; top_k keeps the k largest (all that equal the
// k-th); top_p keeps the smallest set of most probable tokens whose probability, among those kept
// by top_k, reaches top_p (again all that equal the last one); one of the kept is drawn. A NaN
// logit is never chosen, unless all are NaN: then token 0.
//
// The draw is Gumbel-max: argmax over kept tokens v of logit_v / temperature + g(v),
// g(v) = -log(-log(u)), u uniform from Philox4x32-10 with key = seed and counter words = (v / 4, 0,
// sample_index low, high), lane v % 4. So it depends on the seed, the index of the token in its
// sequence and the logits, and on nothing else: not on the batch, the row or the device.
struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  int32_t top_k = 0;         // 0: all
  float top_p = 1.0f;        // 1: all; (0, 1]
  uint64_t seed = 0;
};

}  // namespace reprise

#endif  // RUNNER_SAMPLING_PARAMS_H_
