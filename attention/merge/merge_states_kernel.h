// Merges partial attention results and converts their lse on the GPU, like MergeStates() and
// ConvertLse() (attention/merge/merge_states.h, attention/merge/lse_format.h). Torch-free.

#ifndef ATTENTION_MERGE_MERGE_STATES_KERNEL_H_
#define ATTENTION_MERGE_MERGE_STATES_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/merge/lse_format.h"
#include "attention/merge/merge_states_params.h"

namespace reprise {

// Device pointers throughout. No synchronisation, no allocation: may be captured.
// Errors: cudaErrorInvalidValue for what CheckMergeStates() refuses.
cudaError_t LaunchMergeStates(const MergeStatesParams& params, cudaStream_t stream);

cudaError_t LaunchConvertLse(const LseConversion& conversion, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_MERGE_MERGE_STATES_KERNEL_H_
