// The DeviceDriver of the CPU: each call does its work before it returns.

#ifndef RUNNER_CPU_DEVICE_DRIVER_H_
#define RUNNER_CPU_DEVICE_DRIVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runner/device_driver.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeCpuDeviceDriver(
    const LinearContextOptions& linears);

}  // namespace reprise

#endif  // RUNNER_CPU_DEVICE_DRIVER_H_
