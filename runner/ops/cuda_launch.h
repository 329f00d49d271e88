// Launches the kernel of an op on a tensor's device, on LibTorch's current stream.
//
//   return LaunchOnCurrentStream(
//       x, [&](cudaStream_t stream) { return LaunchRmsNorm(args, stream); });
//
// Does not synchronise. An error inside the kernel is reported by a later call that waits for the
// stream.

#ifndef REPRISE_RUNNER_OPS_CUDA_LAUNCH_H_
#define REPRISE_RUNNER_OPS_CUDA_LAUNCH_H_

#include <ATen/core/Tensor.h>
#include <cuda_runtime_api.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace reprise {

// Makes the device of `tensor` current, calls `launch` with LibTorch's current stream of that
// device and returns the result. REQUIRES: `tensor` is on a GPU.
absl::Status LaunchOnCurrentStream(const at::Tensor& tensor,
                                   absl::FunctionRef<absl::Status(cudaStream_t)> launch);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_CUDA_LAUNCH_H_
