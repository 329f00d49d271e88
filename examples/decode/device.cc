#include "examples/decode/device.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace reprise {

absl::StatusOr<c10::Device> ChooseDevice(DeviceChoice choice, int num_gpus, int index) {
  if (choice == DeviceChoice::kCpu) return c10::Device(c10::kCPU);
  if (num_gpus == 0) {
    if (choice == DeviceChoice::kAuto) return c10::Device(c10::kCPU);
    return absl::FailedPreconditionError(
        "--device: cuda was asked for, but LibTorch finds no GPU on this machine");
  }
  if (index >= num_gpus) {
    return absl::FailedPreconditionError(
        absl::StrCat("each rank of a machine takes a GPU: expected one for rank ", index,
                     ", but LibTorch finds ", num_gpus));
  }
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

int SensibleCpuThreads(int64_t weight_bytes, int num_available) {
  constexpr int64_t kBytesPerThread = int64_t{16} << 20;
  const int64_t at_most = std::max(num_available, 1);
  return static_cast<int>(std::clamp<int64_t>(weight_bytes / kBytesPerThread, 1, at_most));
}

}  // namespace reprise
