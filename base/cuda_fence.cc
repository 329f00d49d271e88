#include "reprise/base/cuda_fence.h"

#include "absl/status/status.h"
#include "reprise/base/status_macros.h"

#ifdef REPRISE_WITH_CUDA
#include <cuda_runtime_api.h>
#include <glog/logging.h>

#include "reprise/base/cuda_device_scope.h"
#include "reprise/base/cuda_status.h"
#endif

namespace reprise {

#ifdef REPRISE_WITH_CUDA
namespace {

class CudaFence : public Fence {
 public:
  CudaFence(const CudaFenceOptions& options, cudaEvent_t event)
      : device_(options.device), stream_(options.stream), event_(event) {}

  ~CudaFence() override {
    // CUDA keeps the event until the device has completed it.
    Checked(cudaEventDestroy(event_), "cudaEventDestroy").IgnoreError();
  }

  void Arm() override {
    const CudaDeviceScope scope(device_);
    failure_ = Checked(cudaEventRecord(event_, stream_), "cudaEventRecord");
    is_armed_ = failure_.ok();
  }

  bool Passed() override {
    if (!is_armed_) return true;
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // clears the last error, cudaErrorNotReady
      return false;
    }
    failure_ = Checked(error, "cudaEventQuery");
    is_armed_ = false;
    return true;
  }

  absl::Status Wait() override {
    if (is_armed_) {
      failure_ = Checked(cudaEventSynchronize(event_), "cudaEventSynchronize");
      is_armed_ = false;
    }
    return failure_;
  }

 private:
  absl::Status Checked(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return absl::OkStatus();
    absl::Status status = CudaStatus(error, call);
    LOG_IF(WARNING, !is_failure_logged_)
        << "a fence completes because the device failed: " << status;
    is_failure_logged_ = true;
    return status;
  }

  const int device_;
  const cudaStream_t stream_;
  const cudaEvent_t event_;
  bool is_armed_ = false;
  absl::Status failure_;  // error of the latest arming
  bool is_failure_logged_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Fence>> MakeCudaFence(const CudaFenceOptions& options) {
  const CudaDeviceScope scope(options.device);
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
