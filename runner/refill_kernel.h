// Refill on the GPU: one launch that does what RefillOnHost() does (runner/refill.h).

#ifndef RUNNER_REFILL_KERNEL_H_
#define RUNNER_REFILL_KERNEL_H_

#include <cuda_runtime_api.h>

#include "runner/refill_args.h"

namespace reprise {

// Pointers of `args` are device addresses; the delta and num_bad_rows may be mapped host memory.
// Errors: cudaErrorInvalidValue if the padded sizes pass those of the arrays; InvalidConfiguration
// if num_slots and padded_num_rows are too many for shared memory (some 8000 each).
cudaError_t LaunchRefill(const RefillArgs& args, cudaStream_t stream);

}  // namespace reprise

#endif  // RUNNER_REFILL_KERNEL_H_
