// Sets the current GPU of this thread for a scope.
//
//   const CudaDeviceScope scope(device);
//   kernel<<<grid, cta, 0, stream>>>(args);   // `stream` belongs to `device`
//
// Launches, events and kernel attributes use the current device, which the caller controls. Code
// that owns a stream of one device must open a scope before it uses the stream.
//
// If CUDA rejects the device, the scope has no effect. Cost: one query if the device is already
// current. Only in builds with CUDA (REPRISE_WITH_CUDA).

#ifndef REPRISE_BASE_CUDA_DEVICE_SCOPE_H_
#define REPRISE_BASE_CUDA_DEVICE_SCOPE_H_

#ifdef REPRISE_WITH_CUDA

#include <cuda_runtime_api.h>

namespace reprise {

class CudaDeviceScope {
 public:
  explicit CudaDeviceScope(int device) {
    if (cudaGetDevice(&previous_) != cudaSuccess || previous_ == device) return;
    is_switched_ = cudaSetDevice(device) == cudaSuccess;
  }
  CudaDeviceScope(const CudaDeviceScope&) = delete;
  CudaDeviceScope& operator=(const CudaDeviceScope&) = delete;
  ~CudaDeviceScope() {
    if (is_switched_) cudaSetDevice(previous_);
  }

 private:
  int previous_ = 0;
  bool is_switched_ = false;
};

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA

#endif  // REPRISE_BASE_CUDA_DEVICE_SCOPE_H_
