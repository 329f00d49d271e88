// The CUDA kernel of runner/ops/gelu.h, without LibTorch.

#ifndef RUNNER_OPS_GELU_KERNEL_H_
#define RUNNER_OPS_GELU_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace reprise {

struct GeluParams {
  DType dtype = DType::kFloat32;  // float32, float16 or bfloat16
  void* x = nullptr;              // [num_rows, size], in place
  int64_t stride = 0;             // elements from row to row
  int num_rows = 0;
  int size = 0;
};

cudaError_t LaunchGelu(const GeluParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // RUNNER_OPS_GELU_KERNEL_H_
