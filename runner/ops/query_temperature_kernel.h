// The CUDA kernel of runner/ops/query_temperature.h, without LibTorch.

#ifndef RUNNER_OPS_QUERY_TEMPERATURE_KERNEL_H_
#define RUNNER_OPS_QUERY_TEMPERATURE_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "runner/ops/heads_view.h"
#include "runner/ops/temperature.h"

namespace reprise {

struct QueryTemperatureParams {
  DType dtype = DType::kFloat32;  // of q: float32, float16 or bfloat16
  HeadsView q;                    // in place
  int num_tokens = 0;
  int head_dim = 0;
  const int32_t* positions = nullptr;  // [num_tokens]
  QueryTemperature temperature;
};

cudaError_t LaunchQueryTemperature(const QueryTemperatureParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // RUNNER_OPS_QUERY_TEMPERATURE_KERNEL_H_
