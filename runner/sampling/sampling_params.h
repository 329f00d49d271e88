// Parameters that determine how a sequence's next token is chosen from its logits, and the per-slot
// state that the choice reads and updates. Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_SAMPLING_SAMPLING_PARAMS_H_
#define REPRISE_RUNNER_SAMPLING_SAMPLING_PARAMS_H_

#include <cstdint>

#include "reprise/attention/speculation/missing_token.h"

namespace reprise {

// The default is greedy: the token of the largest logit, with the lowest id among equals. Otherwise
// these steps are applied in this order, as in Hugging Face's generate():
//
// 1. Logits are divided by the temperature.
// 2. top_k keeps the k largest logits, and all logits equal to the k-th.
// 3. top_p keeps the smallest set of most probable tokens whose probability, relative to the tokens
//    kept by top_k, reaches top_p, and all tokens equal to the last one.
// 4. min_p keeps the tokens whose probability is at least min_p times the probability of the most
//    probable token.
// 5. One of the kept tokens is drawn.
//
// vLLM applies min_p before top_k and top_p: its top_p counts only tokens that min_p keeps.
//
// A logit of NaN or -inf is never chosen. A row without any other logit has no token to choose
// (kNanRow).
//
// The draw is Gumbel-max: argmax over kept tokens v of logit_v / temperature + g(v), g(v) =
// -log(-log(u)), u uniform from Philox4x32-10 with key = seed and counter words = (v / 4, 0,
// sample_index low, high), lane v % 4. The draw depends only on these parameters, the index of the
// token in its sequence and the logits. It does not depend on the batch, the row or the device.
struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  int32_t top_k = 0;         // 0: keep all tokens
  float top_p = 1.0f;        // in (0, 1]; 1: keep all tokens
  float min_p = 0.0f;        // in [0, 1], rounded up to units of 2^-40; 0: keep all tokens
  uint64_t seed = 0;
};

// The features of sampling that a step needs. They select the kernel, so that greedy decoding does
// not pay for top-p.
enum class SamplingFeatures : int8_t {
  kGreedy,   // every row takes the token of its largest logit
  kGeneral,  // rows may have a temperature, top_k, top_p or min_p, or be greedy
};

// The slots of the sampled rows: views of arrays that the caller owns (runner/slots/slot_state.h).
struct SamplingSlots {
  const SamplingParams* params = nullptr;  // [num_slots]
  int32_t* last_token = nullptr;           // [num_slots]; written
  int64_t* sample_index = nullptr;         // [num_slots] tokens sampled so far; increased by 1
  int num_slots = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_SAMPLING_PARAMS_H_
