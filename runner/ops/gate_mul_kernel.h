// The CUDA kernel of runner/ops/gate_mul.h, without LibTorch.

#ifndef RUNNER_OPS_GATE_MUL_KERNEL_H_
#define RUNNER_OPS_GATE_MUL_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "runner/ops/activation.h"

namespace reprise {

// Strides are in elements, from row to row.
struct GateMulParams {
  DType dtype = DType::kFloat32;  // float32, float16 or bfloat16
  Activation activation = Activation::kSilu;
  const void* gate_up = nullptr;  // [num_rows, 2 * size]
  int64_t gate_up_stride = 0;
  void* out = nullptr;  // [num_rows, size]
  int64_t out_stride = 0;
  int num_rows = 0;
  int size = 0;
};

cudaError_t LaunchGateMul(const GateMulParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // RUNNER_OPS_GATE_MUL_KERNEL_H_
