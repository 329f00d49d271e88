// The common prefix of a batch on the GPU: what CommonPrefixLen() finds
// (attention/common_prefix.h). Torch-free.

#ifndef ATTENTION_COMMON_PREFIX_KERNEL_H_
#define ATTENTION_COMMON_PREFIX_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/common_prefix_args.h"

namespace reprise {

// Device pointers throughout. A memset and a kernel; no synchronisation, no allocation: may be
// captured. Errors: cudaErrorInvalidValue for block_size < 1 or no common_prefix_len.
cudaError_t LaunchCommonPrefix(const CommonPrefixArgs& args, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_COMMON_PREFIX_KERNEL_H_
