#include "examples/decode/device.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>

#include "absl/status/status.h"

namespace reprise {

int NumGpus() {
  // LibTorch's hooks give the answer without linking CUDA.
  const at::CUDAHooksInterface& cuda = at::detail::getCUDAHooks();
  return cuda.hasCUDA() ? static_cast<int>(cuda.deviceCount()) : 0;
}

absl::StatusOr<c10::Device> ChooseDevice(DeviceChoice choice, int num_gpus) {
  switch (choice) {
    case DeviceChoice::kCpu:
      return c10::Device(c10::kCPU);
    case DeviceChoice::kCuda:
      if (num_gpus == 0) {
        return absl::FailedPreconditionError(
            "--device: cuda was asked for, but LibTorch finds no GPU on this machine");
      }
      return c10::Device(c10::kCUDA, 0);
    case DeviceChoice::kAuto:
      break;
  }
  return num_gpus > 0 ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
}

int SensibleCpuThreads(int64_t weight_bytes, int num_available) {
  constexpr int64_t kBytesPerThread = int64_t{16} << 20;
  const int64_t at_most = std::max(num_available, 1);
  return static_cast<int>(std::clamp<int64_t>(weight_bytes / kBytesPerThread, 1, at_most));
}

}  // namespace reprise
