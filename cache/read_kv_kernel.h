// The KV read on CUDA: see cache/read_kv.h for what it does. Callers use ReadKv().

#ifndef CACHE_READ_KV_KERNEL_H_
#define CACHE_READ_KV_KERNEL_H_

#include <cuda_runtime_api.h>

#include "cache/read_kv_params.h"

namespace reprise {

// Enqueues the read on `stream`. All pointers are the device's. Caches and destinations as
// cache/read_kv.h lists, without float64; else cudaErrorNotSupported. No synchronisation, no
// allocation: may be captured. No launch if params.num_tokens is 0.
cudaError_t LaunchReadKv(const ReadKvParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // CACHE_READ_KV_KERNEL_H_
