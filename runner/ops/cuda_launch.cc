// Empty in builds without CUDA.
#ifdef REPRISE_WITH_CUDA

#include "reprise/runner/ops/cuda_launch.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "reprise/base/torch_status.h"

namespace reprise {

absl::Status LaunchOnCurrentStream(const at::Tensor& tensor,
                                   absl::FunctionRef<absl::Status(cudaStream_t)> launch) {
  return CatchTorch([&]() -> absl::Status {
    const c10::cuda::CUDAGuard guard(tensor.device());
    return launch(c10::cuda::getCurrentCUDAStream(tensor.device().index()));
  });
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
