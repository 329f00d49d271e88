#include "reprise/models/devices.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include "absl/strings/str_cat.h"

namespace reprise {

int NumGpus() {
  // LibTorch's hooks give the answer without linking CUDA.
  const at::CUDAHooksInterface& cuda = at::detail::getCUDAHooks();
  return cuda.hasCUDA() ? static_cast<int>(cuda.deviceCount()) : 0;
}

c10::Device DefaultDevice() {
  return NumGpus() > 0 ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
}

absl::Status CheckDevice(c10::Device device) {
  if (device.is_cpu()) return absl::OkStatus();
  if (!device.is_cuda()) {
    return absl::InvalidArgumentError(
        absl::StrCat("device must be the CPU or a CUDA device: got ", device.str()));
  }
  const int index = device.has_index() ? device.index() : 0;
  if (index < NumGpus()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("device must be a GPU that LibTorch can use: expected at most ", NumGpus(),
                   " GPUs, got ", device.str()));
}

}  // namespace reprise
