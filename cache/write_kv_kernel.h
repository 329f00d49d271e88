// The KV write on CUDA: see cache/write_kv.h for what it does. Callers use WriteKv().

#ifndef CACHE_WRITE_KV_KERNEL_H_
#define CACHE_WRITE_KV_KERNEL_H_

#include <cuda_runtime_api.h>

#include "cache/write_kv_params.h"

namespace reprise {

// Enqueues the write on `stream`. All pointers are the device's. Sources: float32, float16,
// bfloat16; caches: those and both fp8; else cudaErrorNotSupported. Tokens whose slot is not within
// the cache are not written. No synchronisation, no allocation: may be captured. No launch if
// params.num_tokens is 0.
cudaError_t LaunchWriteKv(const WriteKvParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // CACHE_WRITE_KV_KERNEL_H_
