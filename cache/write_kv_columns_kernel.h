// The KV write on CUDA for caches whose tokens stand side by side: the K-packed layout, K in pieces
// of 16 bytes a token, V an element a token (cache/kv_layer.h). Part of LaunchWriteKv().

#ifndef CACHE_WRITE_KV_COLUMNS_KERNEL_H_
#define CACHE_WRITE_KV_COLUMNS_KERNEL_H_

#include <cuda_runtime_api.h>

#include "cache/write_kv_params.h"

namespace reprise {

// Whether the layout, strides and addresses are such.
bool CanWriteKvColumns(const WriteKvParams& params);

// As LaunchWriteKv(). REQUIRES: CanWriteKvColumns(params), params.num_tokens > 0.
cudaError_t LaunchWriteKvColumns(const WriteKvParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // CACHE_WRITE_KV_COLUMNS_KERNEL_H_
