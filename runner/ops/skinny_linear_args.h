// Arguments of the kernel in skinny_linear.cu, a GEMM of few rows that is bound by reading the
// weight. The kernel of runner/ops/few_rows/tile_linear.h has the same arguments. A GPU's
// LinearContext chooses from both kernels and cuBLASLt. Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_OPS_SKINNY_LINEAR_ARGS_H_
#define REPRISE_RUNNER_OPS_SKINNY_LINEAR_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"
#include "reprise/runner/ops/op_options.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// When the kernel starts to read weights. All other inputs are read after the previous kernel.
enum class SkinnyWeights : int8_t {
  kAfterKernelBefore,
  // While the previous kernel still runs. Neither that kernel, nor an earlier kernel that has not
  // ended when this kernel starts, may write the weights. For kernels within a captured graph whose
  // weights are written before its launch.
  kEarly,
};

// out = x weight^T + bias. If gated, activation(gate) * up of that result: the first half of its
// columns is the gate, the second half is up. The result is bitwise identical to GateMul()
// (runner/ops/elementwise.h). Strides are in elements between rows; the last stride is 1.
struct SkinnyLinearArgs {
  DType dtype = DType::kBFloat16;      // x, weight and bias: float16 or bfloat16
  DType out_dtype = DType::kBFloat16;  // `dtype`, or float32
  const void* x = nullptr;             // [num_rows, in_features]
  int64_t x_stride = 0;
  const void* weight = nullptr;  // [out_features, in_features]
  int64_t weight_stride = 0;
  const void* bias = nullptr;  // [out_features]; null: no bias
  void* out = nullptr;         // [num_rows, out_features]; gated: [num_rows, out_features / 2]
  int64_t out_stride = 0;
  int num_rows = 0;
  int out_features = 0;
  int in_features = 0;
  SkinnyWeights weights = SkinnyWeights::kAfterKernelBefore;
  bool is_gated = false;  // requires out_dtype == dtype
  Activation activation = Activation::kSilu;
};

inline constexpr int kMaxSkinnyRows = 8;
// Maximum number of units of 16 weight rows that a CTA processes together. The fastest number
// depends on the shape. The strip and the number of rows of x do not affect the results.
inline constexpr int kMaxSkinnyStrip = 3;

// Whether the kernel supports the arguments: dtypes as above, 1 to kMaxSkinnyRows rows,
// out_features a multiple of 16, in_features a multiple of 512. Rows of x and weight must be
// aligned to 16 bytes.
bool SkinnyLinearServes(const SkinnyLinearArgs& args);

// Enqueues the kernel with strips of `strip` units, 1 to kMaxSkinnyStrip. Requires compute
// capability 8.0 or later and up to 156 KB of shared memory per CTA. On 9.0 and later, the kernel
// starts while the previous kernel ends (base/dependent_launch.cuh). Errors: InvalidArgument if the
// kernel does not support the arguments; those of CudaStatus() (base/cuda_status.h).
absl::Status LaunchSkinnyLinear(const SkinnyLinearArgs& args, int strip, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_SKINNY_LINEAR_ARGS_H_
