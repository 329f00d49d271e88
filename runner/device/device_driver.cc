#include "reprise/runner/device/device_driver.h"

#include "absl/strings/str_cat.h"
#include "reprise/runner/device/cpu_device_driver.h"
#include "reprise/runner/device/cuda_device_driver.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeDeviceDriver(c10::Device device,
                                                               const DeviceDriverOptions& options) {
  switch (device.type()) {
    case c10::DeviceType::CPU:
      return MakeCpuDeviceDriver(options);
    case c10::DeviceType::CUDA:
      return MakeCudaDeviceDriver(device, options);
    default:
      return absl::UnimplementedError(absl::StrCat(
          "device must be a CPU or a CUDA GPU: expected cpu or cuda, got ", device.str()));
  }
}

}  // namespace reprise
