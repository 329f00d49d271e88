#include "reprise/attention/torch_ops/status_launch.h"

#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include "absl/strings/str_cat.h"

namespace reprise {

absl::Status LaunchOn(c10::Device device, const char* op,
                      [[maybe_unused]] absl::FunctionRef<absl::Status(CUstream_st*)> launch) {
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) {
    const c10::cuda::CUDAGuard guard(device);
    return launch(c10::cuda::getCurrentCUDAStream(device.index()).stream());
  }
#endif
  return absl::UnimplementedError(
      absl::StrCat(op, " runs on the CPU, and in builds with CUDA on GPUs: got ", device.str()));
}

}  // namespace reprise
