// Launches an operator's kernels on the current stream of a GPU.

#ifndef REPRISE_ATTENTION_TORCH_OPS_STATUS_LAUNCH_H_
#define REPRISE_ATTENTION_TORCH_OPS_STATUS_LAUNCH_H_

#include <c10/core/Device.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

struct CUstream_st;

namespace reprise {

// Calls `launch` with LibTorch's current stream of `device`. `device` is current during the call.
// Errors: errors of `launch`; Unimplemented, with the name `op`, in builds without CUDA and for
// other kinds of devices.
absl::Status LaunchOn(c10::Device device, const char* op,
                      absl::FunctionRef<absl::Status(CUstream_st*)> launch);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_STATUS_LAUNCH_H_
