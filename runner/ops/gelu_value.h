// GELU of one value, for hosts and devices alike: see gelu.h.

#ifndef RUNNER_OPS_GELU_VALUE_H_
#define RUNNER_OPS_GELU_VALUE_H_

#include <cmath>

#include "attention/host_device.h"

namespace reprise {

// In float32. Of negative values the definition subtracts nearly equal numbers; erfc does not.
REPRISE_HOST_DEVICE inline float GeluValue(float x) {
  constexpr float kSqrtHalf = 0.70710678118654752f;
  return 0.5f * x * erfcf(-x * kSqrtHalf);
}

}  // namespace reprise

#endif  // RUNNER_OPS_GELU_VALUE_H_
