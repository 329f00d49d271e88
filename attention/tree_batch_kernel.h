// Batches of token trees on the GPU: one launch that does what TreeBatchOnHost() does
// (attention/tree_batch.h). Torch-free.

#ifndef ATTENTION_TREE_BATCH_KERNEL_H_
#define ATTENTION_TREE_BATCH_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/tree_batch_args.h"

namespace reprise {

// Device pointers throughout. No synchronisation, no allocation: may be captured.
// Errors: cudaErrorInvalidValue for sizes that CheckTreeBatchSizes() refuses.
cudaError_t LaunchTreeBatch(const TreeBatchArgs& args, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_TREE_BATCH_KERNEL_H_
