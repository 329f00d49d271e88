// Arguments of the GPU implementation of runner/ranks/sum_norm.h. Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_RANKS_SUM_NORM_ARGS_H_
#define REPRISE_RUNNER_RANKS_SUM_NORM_ARGS_H_

#include "absl/status/status.h"
#include "reprise/distributed/push_all_reduce_args.h"
#include "reprise/runner/ops/norms/norm_args.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

struct SumNormArgs {
  NormArgs norm;          // an RMS norm with a residual; x is sum.data
  PushAllReduceArgs sum;  // the sum of norm's rows, contiguous
};

// Returns whether the kernel supports `norm` on the current device. Requires float32 or bfloat16;
// rows that are multiples of 16 bytes, contiguous in x; an `out` that does not overlap x; and at
// most one row per SM, so that all CTAs are resident at once. Only in builds with CUDA.
bool CanSumInNorm(const NormArgs& norm);

// Enqueues the kernel: residual += the sum over ranks, out = the norm. REQUIRES:
// CanSumInNorm(args.norm). Errors: as CudaStatus() (base/cuda_status.h). Only in builds with CUDA.
absl::Status LaunchSumNorm(const SumNormArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_SUM_NORM_ARGS_H_
