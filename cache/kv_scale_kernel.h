// The largest magnitude of new keys or values on CUDA: see cache/kv_scale.h. Callers use
// ComputeKvScales().

#ifndef CACHE_KV_SCALE_KERNEL_H_
#define CACHE_KV_SCALE_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "cache/write_kv_params.h"

namespace reprise {

struct KvScaleParams {
  KvSource values = {};
  DType dtype = DType::kFloat32;
  const int64_t* slot_mapping = nullptr;  // [num_tokens]
  int64_t num_tokens = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float* scales = nullptr;  // [num_kv_heads], or [1]
  int num_scales = 0;
  float range = 1.0f;
};

// cudaErrorNotSupported for a dtype that is not float32, float16 or bfloat16.
cudaError_t LaunchComputeKvScales(const KvScaleParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // CACHE_KV_SCALE_KERNEL_H_
