// The DeviceDriver for an NVIDIA GPU: all work is enqueued on one long-lived stream.

#ifndef REPRISE_RUNNER_DEVICE_CUDA_DEVICE_DRIVER_H_
#define REPRISE_RUNNER_DEVICE_CUDA_DEVICE_DRIVER_H_

#include <c10/core/Device.h>

#include <memory>

#include "absl/status/statusor.h"
#include "reprise/runner/device/device_driver.h"

namespace reprise {

// Errors: InvalidArgument if the GPU does not exist; Unimplemented in a build without CUDA.
absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeCudaDeviceDriver(
    c10::Device device, const DeviceDriverOptions& options);

}  // namespace reprise

#endif  // REPRISE_RUNNER_DEVICE_CUDA_DEVICE_DRIVER_H_
