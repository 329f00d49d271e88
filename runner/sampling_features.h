// What a step's sampling must be able to do: a choice between kernels, so that greedy decoding
// never pays for top-p.

#ifndef RUNNER_SAMPLING_FEATURES_H_
#define RUNNER_SAMPLING_FEATURES_H_

#include <cstdint>

namespace reprise {

enum class SamplingFeatures : int8_t {
  kGreedy,   // every row takes the token of its largest logit
  kGeneral,  // any row may have a temperature, top-k or top-p; greedy rows are served as well
};

}  // namespace reprise

#endif  // RUNNER_SAMPLING_FEATURES_H_
