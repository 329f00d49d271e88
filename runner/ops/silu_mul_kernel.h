// The CUDA kernel of runner/ops/silu_mul.h, without LibTorch.

#ifndef RUNNER_OPS_SILU_MUL_KERNEL_H_
#define RUNNER_OPS_SILU_MUL_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace reprise {

// Strides are in elements, from row to row.
struct SiluMulParams {
  DType dtype = DType::kFloat32;  // float32, float16 or bfloat16
  const void* gate_up = nullptr;  // [num_rows, 2 * size]
  int64_t gate_up_stride = 0;
  void* out = nullptr;  // [num_rows, size]
  int64_t out_stride = 0;
  int num_rows = 0;
  int size = 0;
};

cudaError_t LaunchSiluMul(const SiluMulParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // RUNNER_OPS_SILU_MUL_KERNEL_H_
