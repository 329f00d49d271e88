// The canary on CUDA: see cache/kv_canary.h. Callers use KvCanary.

#ifndef CACHE_KV_CANARY_KERNEL_H_
#define CACHE_KV_CANARY_KERNEL_H_

#include <cuda_runtime_api.h>

#include "cache/kv_canary_params.h"

namespace reprise {

// All pointers are the device's addresses. No launch for nothing.
cudaError_t LaunchMarkKv(const KvMarkParams& params, cudaStream_t stream);
cudaError_t LaunchCheckKv(const KvCheckParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // CACHE_KV_CANARY_KERNEL_H_
