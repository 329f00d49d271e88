// The CUDA kernel of runner/ops/layer_norm.h, without LibTorch.

#ifndef RUNNER_OPS_LAYER_NORM_KERNEL_H_
#define RUNNER_OPS_LAYER_NORM_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace reprise {

// Strides are in elements, from row to row.
struct LayerNormParams {
  DType dtype = DType::kFloat32;  // of all arrays: float32, float16 or bfloat16
  const void* x = nullptr;        // [num_rows, size]
  int64_t x_stride = 0;
  const void* residual = nullptr;  // [num_rows, size]; null: none
  int64_t residual_stride = 0;
  const void* weight = nullptr;  // [size]
  const void* bias = nullptr;    // [size]
  void* out = nullptr;           // [num_rows, size]
  int64_t out_stride = 0;
  int num_rows = 0;
  int size = 0;
  float eps = 0;
};

// With a residual: x + residual is normalised.
cudaError_t LaunchLayerNorm(const LayerNormParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // RUNNER_OPS_LAYER_NORM_KERNEL_H_
