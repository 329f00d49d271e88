#include "examples/llama/device_choice.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include "absl/status/status.h"

namespace reprise {

int NumGpus() {
  // The hooks are LibTorch's own way to ask without linking CUDA.
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

}  // namespace reprise
