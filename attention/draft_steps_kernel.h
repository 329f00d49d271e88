// Steps of a draft model on the GPU: a launch each that does what DraftChainOnHost() and
// DraftLevelOnHost() do (attention/draft_steps.h). Torch-free.

#ifndef ATTENTION_DRAFT_STEPS_KERNEL_H_
#define ATTENTION_DRAFT_STEPS_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/draft_steps_args.h"

namespace reprise {

// Device pointers throughout. No synchronisation, no allocation: may be captured.
// Errors: cudaErrorInvalidValue for sizes that the checks of attention/draft_steps.h refuse.
cudaError_t LaunchDraftChain(const DraftChainArgs& args, cudaStream_t stream);
cudaError_t LaunchDraftLevel(const DraftLevelArgs& args, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_DRAFT_STEPS_KERNEL_H_
