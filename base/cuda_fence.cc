#include "base/cuda_fence.h"

#include "absl/status/status.h"
#include "base/status_macros.h"

#ifdef REPRISE_WITH_CUDA
#include <cuda_runtime_api.h>
#include <glog/logging.h>

#include "base/cuda_status.h"
#endif

namespace reprise {

#ifdef REPRISE_WITH_CUDA
namespace {

// Makes `device` current for a scope: an event is recorded by the device it was made on.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    if (cudaGetDevice(&previous_) != cudaSuccess || previous_ == device) return;
    is_switched_ = cudaSetDevice(device) == cudaSuccess;
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() {
    if (is_switched_) cudaSetDevice(previous_);
  }

 private:
  int previous_ = 0;
  bool is_switched_ = false;
};

class CudaFence : public Fence {
 public:
  CudaFence(const CudaFenceOptions& options, cudaEvent_t event)
      : device_(options.device), stream_(options.stream), event_(event) {}

  ~CudaFence() override {
    // CUDA keeps the event until the device has reached it.
    Succeeds(cudaEventDestroy(event_), "cudaEventDestroy");
  }

  void Arm() override {
    const DeviceScope scope(device_);
    is_armed_ = Succeeds(cudaEventRecord(event_, stream_), "cudaEventRecord");
  }

  bool Passed() override {
    if (!is_armed_) return true;
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // clears the sticky cudaErrorNotReady
      return false;
    }
    Succeeds(error, "cudaEventQuery");
    is_armed_ = false;
    return true;
  }

  void Wait() override {
    if (!is_armed_) return;
    Succeeds(cudaEventSynchronize(event_), "cudaEventSynchronize");
    is_armed_ = false;
  }

 private:
  bool Succeeds(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return true;
    const absl::Status status = CudaStatus(error, call);
    LOG_IF(WARNING, !is_failure_logged_) << "a fence passes because the device failed: " << status;
    is_failure_logged_ = true;
    return false;
  }

  const int device_;
  const cudaStream_t stream_;
  const cudaEvent_t event_;
  bool is_armed_ = false;
  bool is_failure_logged_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Fence>> MakeCudaFence(const CudaFenceOptions& options) {
  const DeviceScope scope(options.device);
  cudaEvent_t event = nullptr;
  const unsigned flags =
      cudaEventDisableTiming |
      (options.waiting == CudaFenceOptions::Waiting::kSleep ? cudaEventBlockingSync : 0u);
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags"));
  return std::make_unique<CudaFence>(options, event);
}

#else

absl::StatusOr<std::unique_ptr<Fence>> MakeCudaFence(const CudaFenceOptions&) {
  return absl::UnimplementedError("this build has no CUDA, so it has no CUDA fences");
}

#endif  // REPRISE_WITH_CUDA

}  // namespace reprise
