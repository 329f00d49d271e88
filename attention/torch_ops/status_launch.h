// Launches of operators on the current stream of a GPU.

#ifndef REPRISE_ATTENTION_TORCH_OPS_STATUS_LAUNCH_H_
#define REPRISE_ATTENTION_TORCH_OPS_STATUS_LAUNCH_H_

#include <c10/core/Device.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

struct CUstream_st;

namespace reprise {

// Calls `launch` with LibTorch's current stream of `device`, with `device` current during the call.
// Errors: those of `launch`; Unimplemented, naming `op`, in builds without CUDA and for devices of
// other kinds.
absl::Status LaunchOn(c10::Device device, const char* op,
                      absl::FunctionRef<absl::Status(CUstream_st*)> launch);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_STATUS_LAUNCH_H_
