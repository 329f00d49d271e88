// How an op reaches its kernel: on the device of a tensor, on LibTorch's current stream.
//
//   return LaunchOnCurrentStream(
//       x, [&](cudaStream_t stream) { return LaunchRmsNorm(args, stream); });
//
// Nothing is synchronised: an error inside of the kernel appears at a later call that waits for the
// stream.

#ifndef REPRISE_RUNNER_OPS_CUDA_LAUNCH_H_
#define REPRISE_RUNNER_OPS_CUDA_LAUNCH_H_

#include <ATen/core/Tensor.h>
#include <cuda_runtime_api.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace reprise {

// Returns `launch` of LibTorch's current stream of the device of `tensor`, called while that device
// is the current one. REQUIRES: `tensor` is on a GPU.
absl::Status LaunchOnCurrentStream(const at::Tensor& tensor,
                                   absl::FunctionRef<absl::Status(cudaStream_t)> launch);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_CUDA_LAUNCH_H_
