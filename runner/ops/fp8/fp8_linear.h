// GEMMs with 8-bit weights: fp8 (e4m3) values, each multiplied by the float32 scale of its row or
// of its group of 128 in_features. x is 16-bit. Linear builds its GEMMs with scaled weights on
// these kernels (runner/ops/linear.h, Linear::CreateScaled()). Does not depend on LibTorch.
//
// A NaN value counts as 480 or -480.

#ifndef REPRISE_RUNNER_OPS_FP8_FP8_LINEAR_H_
#define REPRISE_RUNNER_OPS_FP8_FP8_LINEAR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"
#include "reprise/runner/ops/skinny_linear_args.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// Number of consecutive in_features that share a scale, unless a row has a single scale.
inline constexpr int kFp8Group = 128;

// A weight on the device. Strides are in elements between rows; the last stride is 1.
struct Fp8Weight {
  const uint8_t* values = nullptr;  // [out_features, in_features]
  int64_t stride = 0;
  const float* scales = nullptr;  // [out_features, num_groups]
  int64_t scales_stride = 0;
  int num_groups = 1;  // 1, or one per kFp8Group in_features; the last group may be partial
  int out_features = 0;
  int in_features = 0;
};

// out = x weight^T + bias.
struct Fp8LinearArgs {
  DType dtype = DType::kBFloat16;      // x and bias: float16 or bfloat16
  DType out_dtype = DType::kBFloat16;  // `dtype`, or float32
  const void* x = nullptr;             // [num_rows, in_features]
  int64_t x_stride = 0;
  Fp8Weight weight;
  const void* bias = nullptr;  // [out_features]; null: no bias
  void* out = nullptr;         // [num_rows, out_features]
  int64_t out_stride = 0;
  int num_rows = 0;
  SkinnyWeights weights = SkinnyWeights::kAfterKernelBefore;
};

// Maximum number of rows of x per pass over the weight.
inline constexpr int kFp8PassRows = 32;

// Whether LaunchFp8Linear() supports the arguments: dtypes and num_groups are as above, num_rows is
// positive, out_features is a multiple of 16, in_features is a multiple of 1024, and the rows of x
// and of the weight are aligned to 16 bytes.
bool Fp8LinearServes(const Fp8LinearArgs& args);

// Enqueues one kernel per kFp8PassRows rows. Each kernel starts while the previous kernel ends
// (base/dependent_launch.cuh); args.weights applies to values and scales. Sums are float32. A row's
// results are bitwise independent of the number of rows. Requires compute capability 8.0 or later
// and up to 168 KB of shared memory per CTA. May be captured. Errors: InvalidArgument if the kernel
// does not support the arguments; those of CudaStatus() (base/cuda_status.h).
absl::Status LaunchFp8Linear(const Fp8LinearArgs& args, CUstream_st* stream);

// Enqueues a kernel that writes the weight's rows [first_row, first_row + num_rows), values times
// scales rounded to `dtype` (float32, float16 or bfloat16), to `out` [num_rows, in_features],
// contiguous. This is a plain launch: it waits for the previous kernel. May be captured. Errors:
// InvalidArgument, naming the argument; those of CudaStatus().
absl::Status LaunchDequantise(const Fp8Weight& weight, int first_row, int num_rows, DType dtype,
                              void* out, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FP8_FP8_LINEAR_H_
