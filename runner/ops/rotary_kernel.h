// The CUDA kernel of runner/ops/rotary.h, without LibTorch.

#ifndef RUNNER_OPS_ROTARY_KERNEL_H_
#define RUNNER_OPS_ROTARY_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "cache/kv_layer.h"
#include "runner/ops/rotary_args.h"

namespace reprise {

// Whether LaunchRotary() takes `args.norm`, which is on: all dims turn, and heads are aligned.
bool CanNormaliseWhileRotating(const RotaryArgs& args);

// REQUIRES: args.norm is off, or CanNormaliseWhileRotating(args).
cudaError_t LaunchRotary(const RotaryArgs& args, cudaStream_t stream);

}  // namespace reprise

#endif  // RUNNER_OPS_ROTARY_KERNEL_H_
