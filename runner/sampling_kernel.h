// Sampling on the GPU: one launch (runner/sampling.h).

#ifndef RUNNER_SAMPLING_KERNEL_H_
#define RUNNER_SAMPLING_KERNEL_H_

#include <cuda_runtime_api.h>

#include "runner/sampling_args.h"

namespace reprise {

cudaError_t LaunchSampling(const SamplingArgs& args, cudaStream_t stream);

}  // namespace reprise

#endif  // RUNNER_SAMPLING_KERNEL_H_
