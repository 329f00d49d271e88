// Finds the common prefix of a batch on the GPU, like CommonPrefixLen()
// (attention/merge/common_prefix.h). Torch-free.

#ifndef ATTENTION_MERGE_COMMON_PREFIX_KERNEL_H_
#define ATTENTION_MERGE_COMMON_PREFIX_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/merge/common_prefix_args.h"

namespace reprise {

// Device pointers throughout. No synchronisation, no allocation: may be captured. Launches that
// share `scratch` must be ordered by their stream.
// Errors: cudaErrorInvalidValue for block_size < 1, no common_prefix_len or no scratch.
cudaError_t LaunchCommonPrefix(const CommonPrefixArgs& args, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_MERGE_COMMON_PREFIX_KERNEL_H_
