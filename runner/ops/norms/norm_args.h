// Shared by the CPU and the GPU implementation of runner/ops/norm.h. Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_OPS_NORMS_NORM_ARGS_H_
#define REPRISE_RUNNER_OPS_NORMS_NORM_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

enum class NormKind : int8_t {
  kRms,         // RmsNorm(), NormWeight::kScale
  kRmsOnePlus,  // RmsNorm(), NormWeight::kOnePlus
  kLayer,       // LayerNorm()
};

// Strides are in elements between rows.
struct NormArgs {
  NormKind kind = NormKind::kRms;
  DType dtype = DType::kFloat32;  // all arrays: float32, float16 or bfloat16
  const void* x = nullptr;        // [num_rows, size]
  int64_t x_stride = 0;
  // [num_rows, size]; null: no residual. x + residual is normalised. An RMS norm stores the sum
  // here; a layer norm does not write it.
  void* residual = nullptr;
  int64_t residual_stride = 0;
  const void* weight = nullptr;  // [size]
  const void* bias = nullptr;    // [size]; kLayer only
  void* out = nullptr;           // [num_rows, size]
  int64_t out_stride = 0;
  int num_rows = 0;
  int size = 0;
  float eps = 0;
};

// Enqueues the kernel. REQUIRES: the arguments pass the checks of norm.h. Errors: those of
// CudaStatus() (base/cuda_status.h). Only in builds with CUDA.
absl::Status LaunchNorm(const NormArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_NORMS_NORM_ARGS_H_
