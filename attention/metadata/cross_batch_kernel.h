// Builds the batch of cross attention on the GPU, like BuildCrossBatch()
// (attention/metadata/cross_batch.h). Torch-free.

#ifndef ATTENTION_METADATA_CROSS_BATCH_KERNEL_H_
#define ATTENTION_METADATA_CROSS_BATCH_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/metadata/cross_batch.h"

namespace reprise {

// Pointers of `cross` are device addresses. A row that the host form refuses sees no key. No
// synchronisation; may be captured. Errors: cudaErrorInvalidValue where CrossBatchOver() returns a
// Status with details.
cudaError_t LaunchCrossBatch(const CrossBatch& cross, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_METADATA_CROSS_BATCH_KERNEL_H_
