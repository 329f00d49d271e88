// Moves of keys and values on the GPU: one launch for all layers that does what MoveKvOnHost()
// does (attention/move_kv.h). Torch-free.

#ifndef ATTENTION_MOVE_KV_KERNEL_H_
#define ATTENTION_MOVE_KV_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/move_kv_params.h"

namespace reprise {

// Device pointers throughout. No synchronisation, no allocation: may be captured.
// Errors: cudaErrorInvalidValue for negative sizes.
cudaError_t LaunchMoveKv(const MoveKvParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_MOVE_KV_KERNEL_H_
