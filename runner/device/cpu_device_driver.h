// The DeviceDriver of the CPU: each call does its work before it returns.

#ifndef RUNNER_DEVICE_CPU_DEVICE_DRIVER_H_
#define RUNNER_DEVICE_CPU_DEVICE_DRIVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runner/device/device_driver.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeCpuDeviceDriver(
    const DeviceDriverOptions& options);

}  // namespace reprise

#endif  // RUNNER_DEVICE_CPU_DEVICE_DRIVER_H_
