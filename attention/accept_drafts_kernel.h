// Acceptance on the GPU: one launch that does what AcceptDraftsOnHost() does
// (attention/accept_drafts.h). Torch-free.

#ifndef ATTENTION_ACCEPT_DRAFTS_KERNEL_H_
#define ATTENTION_ACCEPT_DRAFTS_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/accept_drafts_args.h"

namespace reprise {

// Device pointers throughout. No synchronisation, no allocation: may be captured.
// Errors: cudaErrorInvalidValue for sizes that CheckAcceptDraftsSizes() refuses.
cudaError_t LaunchAcceptDrafts(const AcceptDraftsArgs& args, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_ACCEPT_DRAFTS_KERNEL_H_
