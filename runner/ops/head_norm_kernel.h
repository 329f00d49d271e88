// The CUDA kernel of runner/ops/head_norm.h, without LibTorch.

#ifndef RUNNER_OPS_HEAD_NORM_KERNEL_H_
#define RUNNER_OPS_HEAD_NORM_KERNEL_H_

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "runner/ops/heads_view.h"

namespace reprise {

struct HeadNormParams {
  DType dtype = DType::kFloat32;   // of all arrays: float32, float16 or bfloat16
  HeadsView q;                     // in place
  HeadsView k;                     // in place
  const void* q_weight = nullptr;  // [head_dim]; null: none
  const void* k_weight = nullptr;
  int num_tokens = 0;
  int head_dim = 0;
  float eps = 0;
};

cudaError_t LaunchHeadNorm(const HeadNormParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // RUNNER_OPS_HEAD_NORM_KERNEL_H_
