// Which device a run uses.
//
//   REPRISE_ASSIGN_OR_RETURN(c10::Device device, ChooseDevice(DeviceChoice::kAuto, NumGpus()));

#ifndef EXAMPLES_LLAMA_DEVICE_CHOICE_H_
#define EXAMPLES_LLAMA_DEVICE_CHOICE_H_

#include <c10/core/Device.h>

#include "absl/status/statusor.h"
#include "examples/llama/decode_options.h"

namespace reprise {

// GPUs that LibTorch can use; 0 in builds without CUDA.
int NumGpus();

// kAuto: the first GPU if there is one. Errors: FailedPrecondition if a GPU is asked for and there
// is none.
absl::StatusOr<c10::Device> ChooseDevice(DeviceChoice choice, int num_gpus);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_DEVICE_CHOICE_H_
