// Converts errors of the CUDA runtime to Status, without LibTorch.
//
//   if (absl::Status s = CudaStatus(cudaEventCreate(&event), "cudaEventCreate"); !s.ok()) return s;
//
// CudaStatus() clears the runtime's "last error", so the next launch does not report the same error
// again. An error that has broken the device's context ("sticky") cannot be cleared: all later
// calls fail.
//
// Only in builds with CUDA (REPRISE_WITH_CUDA).

#ifndef REPRISE_BASE_CUDA_STATUS_H_
#define REPRISE_BASE_CUDA_STATUS_H_

#ifdef REPRISE_WITH_CUDA

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace reprise {

// Returns OK for cudaSuccess, ResourceExhausted if memory ran out, and Internal otherwise. The
// message contains `call` and CUDA's text.
absl::Status CudaStatus(cudaError_t error, std::string_view call);

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA

#endif  // REPRISE_BASE_CUDA_STATUS_H_
