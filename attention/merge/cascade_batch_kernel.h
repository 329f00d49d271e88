// Cuts a batch at its shared prefix on the GPU in one launch, like CascadeBatchOnHost()
// (attention/merge/cascade_batch.h). Torch-free.

#ifndef ATTENTION_MERGE_CASCADE_BATCH_KERNEL_H_
#define ATTENTION_MERGE_CASCADE_BATCH_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/merge/cascade_batch_args.h"

namespace reprise {

// Device pointers throughout. No synchronisation, no allocation: may be captured.
// Errors: cudaErrorInvalidValue for what CheckCascadeBatch() refuses.
cudaError_t LaunchCascadeBatch(const CascadeBatchArgs& args, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_MERGE_CASCADE_BATCH_KERNEL_H_
