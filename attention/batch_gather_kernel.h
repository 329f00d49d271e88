// The plain builder on the GPU: one launch that does what GatherBatchOnHost() does
// (attention/batch_gather.h). Torch-free.

#ifndef ATTENTION_BATCH_GATHER_KERNEL_H_
#define ATTENTION_BATCH_GATHER_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/batch_gather.h"

namespace reprise {

// Pointers of `gather` are device addresses; outputs overlap no input. No synchronisation, may be
// captured: the grid depends on num_rows and num_tokens alone.
// Errors: cudaErrorInvalidValue for an absent array, a negative count or a block_size below 1.
cudaError_t LaunchBatchGather(const BatchGather& gather, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_BATCH_GATHER_KERNEL_H_
