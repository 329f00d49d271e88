// The factor of runner/ops/query_temperature.h, for hosts and devices alike.

#ifndef RUNNER_OPS_TEMPERATURE_H_
#define RUNNER_OPS_TEMPERATURE_H_

#include <cmath>
#include <cstdint>

#include "attention/host_device.h"

namespace reprise {

struct QueryTemperature {
  float attn_scale = 0.1f;
  float floor_scale = 8192;  // > 0

  friend bool operator==(const QueryTemperature&, const QueryTemperature&) = default;
};

// In float32, step by step as Hugging Face's Llama 4 computes it.
REPRISE_HOST_DEVICE inline float TemperatureAt(int32_t position, float attn_scale,
                                               float floor_scale) {
  const float count = floorf((static_cast<float>(position) + 1.0f) / floor_scale);
  return log1pf(count) * attn_scale + 1.0f;
}

}  // namespace reprise

#endif  // RUNNER_OPS_TEMPERATURE_H_
