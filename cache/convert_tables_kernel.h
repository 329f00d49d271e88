// The kernels behind cache/convert_tables.h, without its checks.

#ifndef CACHE_CONVERT_TABLES_KERNEL_H_
#define CACHE_CONVERT_TABLES_KERNEL_H_

#include <cuda_runtime_api.h>

#include "cache/convert_tables_params.h"

namespace reprise {

// No launch for no rows (but block_indptr[0] is written).
cudaError_t RunPackTable(const PackTableParams& params, cudaStream_t stream);
cudaError_t RunUnpackTable(const UnpackTableParams& params, cudaStream_t stream);
cudaError_t RunTokensToBlocks(const TokensToBlocksParams& params, cudaStream_t stream);
cudaError_t RunBlocksToTokens(const BlocksToTokensParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // CACHE_CONVERT_TABLES_KERNEL_H_
