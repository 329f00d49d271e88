// The nonlinearities of feed-forward layers, for hosts and devices alike.

#ifndef RUNNER_OPS_ACTIVATION_H_
#define RUNNER_OPS_ACTIVATION_H_

#include <cmath>
#include <cstdint>

#include "attention/host_device.h"

namespace reprise {

enum class Activation : int8_t {
  kSilu,      // x / (1 + exp(-x)): the Llama family
  kGeluTanh,  // GELU as its tanh formula has it (Hendrycks and Gimpel, 2016): Gemma
};

// In float32.
template <Activation kActivation>
REPRISE_HOST_DEVICE inline float Activate(float x) {
  if constexpr (kActivation == Activation::kSilu) {
    return x / (1.0f + expf(-x));
  } else {
    constexpr float kSqrtTwoOverPi = 0.7978845608028654f;
    return 0.5f * x * (1.0f + tanhf(kSqrtTwoOverPi * (x + 0.044715f * x * x * x)));
  }
}

}  // namespace reprise

#endif  // RUNNER_OPS_ACTIVATION_H_
