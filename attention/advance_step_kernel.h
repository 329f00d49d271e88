// The advance of a decode step on the GPU: one launch that does what AdvanceStepOnHost() does
// (attention/advance_step.h). Torch-free.

#ifndef ATTENTION_ADVANCE_STEP_KERNEL_H_
#define ATTENTION_ADVANCE_STEP_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/advance_step_args.h"

namespace reprise {

// Device pointers throughout. No synchronisation, no allocation: may be captured.
// Errors: cudaErrorInvalidValue for sizes that CheckAdvanceStepSizes() refuses.
cudaError_t LaunchAdvanceStep(const AdvanceStepArgs& args, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_ADVANCE_STEP_KERNEL_H_
