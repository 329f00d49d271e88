// A matrix product of few rows, which is bound by the reading of its weights: the arguments of the
// kernel in skinny_linear.cu, one of the algorithms that a LinearContext of a GPU chooses from. No
// LibTorch.

#ifndef REPRISE_RUNNER_OPS_SKINNY_LINEAR_ARGS_H_
#define REPRISE_RUNNER_OPS_SKINNY_LINEAR_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"
#include "reprise/runner/ops/op_options.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// When weights are read. They are the same every step; all else waits for the kernel before.
enum class SkinnyWeights : int8_t {
  kAfterKernelBefore,
  // While the kernel before still runs: that one must not write them, nor may one before it that
  // has not ended when this kernel starts. Between the kernels of a captured graph, whose weights
  // are written before its launch.
  kEarly,
};

// out = x weight^T + bias, or, if gated, activation(gate) * up of it: its first out_features / 2
// columns are the gate, the others the factors, as in GateMul() (runner/ops/elementwise.h), whose
// bits it has. Strides are in elements, from row to row; rows are dense.
struct SkinnyLinearArgs {
  DType dtype = DType::kBFloat16;      // of x, weight and bias: float16 or bfloat16
  DType out_dtype = DType::kBFloat16;  // the same, or float32
  const void* x = nullptr;             // [num_rows, in_features]
  int64_t x_stride = 0;
  const void* weight = nullptr;  // [out_features, in_features]
  int64_t weight_stride = 0;
  const void* bias = nullptr;  // [out_features]; null: none
  void* out = nullptr;         // [num_rows, out_features]; gated: [num_rows, out_features / 2]
  int64_t out_stride = 0;
  int num_rows = 0;
  int out_features = 0;
  int in_features = 0;
  SkinnyWeights weights = SkinnyWeights::kAfterKernelBefore;
  bool is_gated = false;  // out has the dtype of x then
  Activation activation = Activation::kSilu;
};

inline constexpr int kMaxSkinnyRows = 8;
// Weight rows that a CTA takes at once, in units of 16: what is quickest depends on the shape. The
// bits do not depend on it, nor on the number of rows.
inline constexpr int kMaxSkinnyStrip = 3;

// Whether the kernel can compute this: 1 to kMaxSkinnyRows rows, out_features a multiple of 16,
// in_features of 512, rows of x and of the weight at multiples of 16 bytes.
bool SkinnyLinearServes(const SkinnyLinearArgs& args);

// Enqueues the kernel with strips of `strip` units, 1 to kMaxSkinnyStrip. It needs compute capability
// 8.0, and on 9.0 and later it starts while the kernel before it ends (base/dependent_launch.cuh).
// Errors: InvalidArgument if the kernel does not serve the arguments; those of CudaStatus()
// (base/cuda_status.h).
absl::Status LaunchSkinnyLinear(const SkinnyLinearArgs& args, int strip, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_SKINNY_LINEAR_ARGS_H_
