// Unstable: any version may change this header (docs/embedding.md).
//
// The devices that a model can be loaded to.
//
// Thread safety: pure functions.

#ifndef REPRISE_MODELS_DEVICES_H_
#define REPRISE_MODELS_DEVICES_H_

#include <c10/core/Device.h>

#include "absl/status/status.h"

namespace reprise {

// Number of GPUs that LibTorch can use; 0 in builds without CUDA.
int NumGpus();

// The first GPU if LibTorch can use one; otherwise the CPU.
c10::Device DefaultDevice();

// Errors: InvalidArgument unless `device` is the CPU or a GPU; FailedPrecondition if LibTorch
// cannot use this GPU.
absl::Status CheckDevice(c10::Device device);

}  // namespace reprise

#endif  // REPRISE_MODELS_DEVICES_H_
