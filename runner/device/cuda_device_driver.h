// The DeviceDriver for an NVIDIA GPU: work is enqueued on one long-lived stream, and in InLanes()
// also on side streams that this stream waits for.

#ifndef REPRISE_RUNNER_DEVICE_CUDA_DEVICE_DRIVER_H_
#define REPRISE_RUNNER_DEVICE_CUDA_DEVICE_DRIVER_H_

#include <c10/core/Device.h>

#include <memory>

#include "absl/status/statusor.h"
#include "reprise/runner/device/device_driver.h"

namespace reprise {

// Errors: InvalidArgument if the GPU does not exist; as CudaGraphBackend::Create(); Unimplemented
// in a build without CUDA.
absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeCudaDeviceDriver(
    c10::Device device, const DeviceDriverOptions& options);

}  // namespace reprise

#endif  // REPRISE_RUNNER_DEVICE_CUDA_DEVICE_DRIVER_H_
