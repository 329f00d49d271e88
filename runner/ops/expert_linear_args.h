// Arguments of the kernel of runner/ops/expert_linear.h. Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_OPS_EXPERT_LINEAR_ARGS_H_
#define REPRISE_RUNNER_OPS_EXPERT_LINEAR_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// Strides are in elements between rows.
struct ExpertLinearArgs {
  DType dtype = DType::kFloat32;  // x, weight, bias and out: float32, float16 or bfloat16
  const void* x = nullptr;        // [num_pairs / pairs_per_row, in_features]
  int64_t x_stride = 0;
  const void* weight = nullptr;     // [num_experts, out_features, in_features], contiguous
  const void* bias = nullptr;       // [num_experts, out_features]; null: no bias
  const int64_t* chosen = nullptr;  // [num_pairs]
  void* out = nullptr;              // [num_pairs, out_features]
  int64_t out_stride = 0;
  int num_pairs = 0;
  int pairs_per_row = 1;
  int num_experts = 0;
  int out_features = 0;
  int in_features = 0;
};

// Enqueues the kernel. REQUIRES: the arguments pass the checks of ExpertLinear::Apply(). Errors:
// those of CudaStatus() (base/cuda_status.h). Only in builds with CUDA.
absl::Status LaunchExpertLinear(const ExpertLinearArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_EXPERT_LINEAR_ARGS_H_
