#include "reprise/base/cuda_status.h"

#ifdef REPRISE_WITH_CUDA

#include "absl/strings/str_cat.h"

namespace reprise {

absl::Status CudaStatus(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  const std::string message =
      absl::StrCat(absl::string_view(call.data(), call.size()), ": ", cudaGetErrorName(error), ": ",
                   cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
