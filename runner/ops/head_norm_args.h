// Arguments of the kernel of runner/ops/head_norm.h, and heads as pointers. Does not depend on
// LibTorch.

#ifndef REPRISE_RUNNER_OPS_HEAD_NORM_ARGS_H_
#define REPRISE_RUNNER_OPS_HEAD_NORM_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"
#include "reprise/runner/ops/op_options.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// Heads of packed tokens: [num_tokens, num_heads, dim]. The dims of a head are contiguous. Strides
// are in elements.
struct HeadsView {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int num_heads = 0;
};

struct HeadNormArgs {
  DType dtype = DType::kFloat32;   // all arrays: float32, float16 or bfloat16
  HeadsView q;                     // normalised in place
  HeadsView k;                     // normalised in place
  const void* q_weight = nullptr;  // [head_dim]; null: no weight
  const void* k_weight = nullptr;
  int num_tokens = 0;
  int head_dim = 0;
  float eps = 0;
  NormWeight form = NormWeight::kScale;
};

// Enqueues the kernel. REQUIRES: the arguments pass CheckHeadNorm(). Errors: those of CudaStatus()
// (base/cuda_status.h). Only in builds with CUDA.
absl::Status LaunchHeadNorm(const HeadNormArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_HEAD_NORM_ARGS_H_
