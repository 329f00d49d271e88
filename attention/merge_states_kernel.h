// Merges of partial attention results, and conversions of their lse, on the GPU: what
// MergeStates() and ConvertLse() do (attention/merge_states.h, attention/lse_format.h). Torch-free.

#ifndef ATTENTION_MERGE_STATES_KERNEL_H_
#define ATTENTION_MERGE_STATES_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/lse_format.h"
#include "attention/merge_states_params.h"

namespace reprise {

// Device pointers throughout. No synchronisation, no allocation: may be captured.
// Errors: cudaErrorInvalidValue for what CheckMergeStates() refuses.
cudaError_t LaunchMergeStates(const MergeStatesParams& params, cudaStream_t stream);

cudaError_t LaunchConvertLse(const LseConversion& conversion, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_MERGE_STATES_KERNEL_H_
