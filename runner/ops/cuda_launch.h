// How an op reaches its kernel: the device and the current stream of a tensor, and CUDA's error as
// a Status.
//
//   return LaunchOnCurrentStream("RmsNorm", x, [&](cudaStream_t stream) {
//     return LaunchRmsNorm(params, stream);
//   });
//
// Nothing is synchronised: errors of the kernel itself appear later, at whoever waits for the
// stream.

#ifndef RUNNER_OPS_CUDA_LAUNCH_H_
#define RUNNER_OPS_CUDA_LAUNCH_H_

#include <ATen/core/Tensor.h>
#include <cuda_runtime_api.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace reprise {

// Calls `launch` with LibTorch's current stream of the device of `tensor`, that device being the
// current one. Errors: those of CudaStatus() (base/cuda_status.h), naming `op`. REQUIRES: `tensor`
// is on a GPU.
absl::Status LaunchOnCurrentStream(const char* op, const at::Tensor& tensor,
                                   absl::FunctionRef<cudaError_t(cudaStream_t)> launch);

}  // namespace reprise

#endif  // RUNNER_OPS_CUDA_LAUNCH_H_
