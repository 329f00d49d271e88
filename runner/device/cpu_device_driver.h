// The DeviceDriver for the CPU: each call completes its work before it returns.

#ifndef REPRISE_RUNNER_DEVICE_CPU_DEVICE_DRIVER_H_
#define REPRISE_RUNNER_DEVICE_CPU_DEVICE_DRIVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "reprise/runner/device/device_driver.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeCpuDeviceDriver(
    const DeviceDriverOptions& options);

}  // namespace reprise

#endif  // REPRISE_RUNNER_DEVICE_CPU_DEVICE_DRIVER_H_
