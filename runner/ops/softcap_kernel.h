// The CUDA kernel of runner/ops/softcap.h, without LibTorch.

#ifndef RUNNER_OPS_SOFTCAP_KERNEL_H_
#define RUNNER_OPS_SOFTCAP_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace reprise {

struct SoftcapParams {
  DType dtype = DType::kFloat32;  // float32, float16 or bfloat16
  void* x = nullptr;              // [num_rows, size], in place
  int64_t stride = 0;             // elements from row to row
  int num_rows = 0;
  int size = 0;
  float cap = 0;
};

cudaError_t LaunchSoftcap(const SoftcapParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // RUNNER_OPS_SOFTCAP_KERNEL_H_
