// Chain batches on the GPU: one launch that does what ChainBatchOnHost() does
// (attention/chain_batch.h). Torch-free.

#ifndef ATTENTION_CHAIN_BATCH_KERNEL_H_
#define ATTENTION_CHAIN_BATCH_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/chain_batch_args.h"

namespace reprise {

// Device pointers throughout. No synchronisation, no allocation: may be captured.
// Errors: cudaErrorInvalidValue for sizes that CheckChainBatchSizes() refuses.
cudaError_t LaunchChainBatch(const ChainBatchArgs& args, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_CHAIN_BATCH_KERNEL_H_
