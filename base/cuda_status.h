// The errors of the CUDA runtime as Status, without LibTorch.
//
//   if (absl::Status s = CudaStatus(cudaEventCreate(&event), "cudaEventCreate"); !s.ok()) return s;
//
// CudaStatus() clears the runtime's "last error", so that an error is reported once and not again
// at the next launch. An error that has broken the device's context ("sticky") stays: every later
// call fails.
//
// Only in builds with CUDA (REPRISE_WITH_CUDA).

#ifndef REPRISE_BASE_CUDA_STATUS_H_
#define REPRISE_BASE_CUDA_STATUS_H_

#ifdef REPRISE_WITH_CUDA

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace reprise {

// OK for cudaSuccess; ResourceExhausted if memory ran out, else Internal; with `call` and CUDA's
// own text.
absl::Status CudaStatus(cudaError_t error, std::string_view call);

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA

#endif  // REPRISE_BASE_CUDA_STATUS_H_
