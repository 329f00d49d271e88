// The batch of cross attention on the GPU: what BuildCrossBatch() does (attention/cross_batch.h).
// Torch-free.

#ifndef ATTENTION_CROSS_BATCH_KERNEL_H_
#define ATTENTION_CROSS_BATCH_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/cross_batch.h"

namespace reprise {

// Pointers of `cross` are device addresses. Where the host form refuses a row, that row sees no
// key. No synchronisation, may be captured. Errors: cudaErrorInvalidValue where CrossBatchOver()
// gives a Status, which says more.
cudaError_t LaunchCrossBatch(const CrossBatch& cross, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_CROSS_BATCH_KERNEL_H_
