// What the GPU form of runner/ranks/sum_norm.h is given. No LibTorch.

#ifndef REPRISE_RUNNER_RANKS_SUM_NORM_ARGS_H_
#define REPRISE_RUNNER_RANKS_SUM_NORM_ARGS_H_

#include "absl/status/status.h"
#include "reprise/distributed/push_sum_args.h"
#include "reprise/runner/ops/norms/norm_args.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

struct SumNormArgs {
  NormArgs norm;    // of an RMS norm with a residual; x: sum.data
  PushSumArgs sum;  // of norm's rows, contiguous
};

// Whether the kernel serves `norm` on the current device: float32 or bfloat16; rows in 16-byte pieces,
// contiguous in x; `out` apart from x; as many rows as the device has SMs, or fewer, so that all CTAs
// run at once. Only in builds with CUDA.
bool CanSumInNorm(const NormArgs& norm);

// Enqueues the kernel: residual += the sum over ranks, out = the norm. REQUIRES:
// CanSumInNorm(args.norm). Errors: those of CudaStatus() (base/cuda_status.h). Only in builds with
// CUDA.
absl::Status LaunchSumNorm(const SumNormArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_SUM_NORM_ARGS_H_
