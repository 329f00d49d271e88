// What a norm does with its weight; runner/ops/rms_norm.h has the formulas.

#ifndef RUNNER_OPS_NORM_WEIGHT_H_
#define RUNNER_OPS_NORM_WEIGHT_H_

#include <cstdint>

namespace reprise {

enum class NormWeight : int8_t {
  kScale,    // times weight: Llama
  kOnePlus,  // times (1 + weight): Gemma
};

}  // namespace reprise

#endif  // RUNNER_OPS_NORM_WEIGHT_H_
