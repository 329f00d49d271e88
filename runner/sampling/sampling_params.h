// How a sequence's next token is chosen from its logits, and the state of slots that the choice
// reads and changes. No LibTorch.

#ifndef REPRISE_RUNNER_SAMPLING_SAMPLING_PARAMS_H_
#define REPRISE_RUNNER_SAMPLING_SAMPLING_PARAMS_H_

#include <cstdint>

#include "reprise/attention/speculation/missing_token.h"

namespace reprise {

// The default is greedy: the token of the largest logit, the lowest id among equals. Otherwise
// these steps follow in this order: logits are divided by the temperature; top_k keeps the k
// largest (all that equal the k-th); top_p keeps the smallest set of most probable tokens whose
// probability, among those kept by top_k, reaches top_p (again all that equal the last one); min_p
// keeps those of them whose probability is at least min_p times that of the most probable token;
// one of the kept tokens is drawn. The order is that of Hugging Face's generate(). vLLM applies
// min_p before top_k and top_p: there top_p counts only what min_p has kept.
//
// A logit of NaN or -inf is never chosen. A row without any other logit has no token to choose
// (kNanRow).
//
// The draw is Gumbel-max: argmax over kept tokens v of logit_v / temperature + g(v),
// g(v) = -log(-log(u)), u uniform from Philox4x32-10 with key = seed and counter words = (v / 4, 0,
// sample_index low, high), lane v % 4. It depends on the seed, the index of the token in its
// sequence and the logits only, not on the batch, the row or the device.
struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  int32_t top_k = 0;         // 0: all
  float top_p = 1.0f;        // 1: all; (0, 1]
  float min_p = 0.0f;        // 0: all; [0, 1]. In units of 2^-40, rounded up
  uint64_t seed = 0;
};

// What the sampling of a step must be able to do. It selects the kernel, so that greedy decoding
// does not pay for top-p.
enum class SamplingFeatures : int8_t {
  kGreedy,   // every row takes the token of its largest logit
  kGeneral,  // any row may have a temperature, top_k, top_p or min_p; greedy rows are served as well
};

// The slots of the sampled rows: views of arrays that the caller owns (runner/slots/slot_state.h).
struct SamplingSlots {
  const SamplingParams* params = nullptr;  // [num_slots]
  int32_t* last_token = nullptr;           // [num_slots] written
  int64_t* sample_index = nullptr;         // [num_slots] tokens sampled so far; increased by 1
  int num_slots = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_SAMPLING_PARAMS_H_
