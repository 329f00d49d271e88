// What the CPU and the GPU form of runner/ops/norm.h share. No LibTorch.

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

// Strides are in elements, from row to row.
struct NormArgs {
  NormKind kind = NormKind::kRms;
  DType dtype = DType::kFloat32;  // of all arrays: float32, float16 or bfloat16
  const void* x = nullptr;        // [num_rows, size]
  int64_t x_stride = 0;
  // [num_rows, size]; null: none. x + residual is normalised. The sum of an RMS norm is stored
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

// Enqueues the kernel. REQUIRES: arguments as the functions of norm.h check them. Errors: those of
// CudaStatus() (base/cuda_status.h). Only in builds with CUDA.
absl::Status LaunchNorm(const NormArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_NORMS_NORM_ARGS_H_
