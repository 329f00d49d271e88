#include "reprise/attention/cuda/device_limits.h"

#include "absl/status/status.h"
#ifdef REPRISE_WITH_CUDA
#include <cuda_runtime_api.h>

#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#endif

namespace reprise {

#ifdef REPRISE_WITH_CUDA

absl::StatusOr<DeviceLimits> DeviceLimitsOf(int device) {
  const auto read = [&device](cudaDeviceAttr attribute, int& value) {
    return CudaStatus(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  };
  if (device < 0) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  }
  DeviceLimits limits;
  int major = 0, minor = 0;
  REPRISE_RETURN_IF_ERROR(read(cudaDevAttrMultiProcessorCount, limits.num_sms));
  REPRISE_RETURN_IF_ERROR(read(cudaDevAttrMaxSharedMemoryPerBlockOptin, limits.max_shared_bytes));
  REPRISE_RETURN_IF_ERROR(read(cudaDevAttrComputeCapabilityMajor, major));
  REPRISE_RETURN_IF_ERROR(read(cudaDevAttrComputeCapabilityMinor, minor));
  limits.compute_capability = 10 * major + minor;
  return limits;
}

#else

absl::StatusOr<DeviceLimits> DeviceLimitsOf(int) {
  return absl::UnimplementedError("DeviceLimitsOf: this build has no CUDA");
}

#endif

}  // namespace reprise
