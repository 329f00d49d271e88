// Normalises rows, or the sum of two rows: by the root mean square (Zhang and Sennrich, 2019), or
// with a mean, weight and bias (Ba et al., 2016).
//
//   RmsNorm     out = round(x / sqrt(mean(x^2) + eps)) * weight         NormWeight::kScale
//               out = x / sqrt(mean(x^2) + eps) * (1 + weight)          NormWeight::kOnePlus
//   LayerNorm   out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias
//
// Computed in float32, with sums on the CPU partly in float64, and rounded to the dtype at the end.
// kScale also rounds before the multiplication with the weight, as Hugging Face's Llama does.
//
//   RmsNorm(hidden, layer.input_norm, 1e-5f, normed);             // the first layer
//   AddRmsNorm(attended, hidden, layer.mlp_norm, 1e-5f, normed);  // hidden += attended, then norm
//
//   LayerNorm(hidden, norm.weight, norm.bias, 1e-5f, normed);
//   AddLayerNorm(attended, hidden, norm.weight, norm.bias, 1e-5f, hidden);  // a norm that follows
//
// Shapes: x, delta, residual and out [num_rows, size]; weight and bias [size]. Tensors are float32,
// float16 or bfloat16, all of one dtype and device. Rows may be strided; the last stride is 1. The
// calls do not allocate or synchronise, so they may be captured. On a GPU, the result of a row is
// bitwise independent of the rest of the batch.
//
// Thread safety: safe for concurrent calls, unless one call writes a tensor that another call uses.
// Errors: InvalidArgument, naming the argument. Cost: one launch; each row is read from memory
// once. At decode sizes, the launch dominates.

#ifndef REPRISE_RUNNER_OPS_NORM_H_
#define REPRISE_RUNNER_OPS_NORM_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

struct NormArgs;  // runner/ops/norms/norm_args.h

// `out` may be `x`.
absl::Status RmsNorm(const at::Tensor& x, const at::Tensor& weight, float eps,
                     const at::Tensor& out, NormWeight form = NormWeight::kScale);

// residual += delta, rounded to the dtype; then out = RmsNorm(residual). `out` may be `delta`.
absl::Status AddRmsNorm(const at::Tensor& delta, const at::Tensor& residual,
                        const at::Tensor& weight, float eps, const at::Tensor& out,
                        NormWeight form = NormWeight::kScale);

// Returns the arguments of AddRmsNorm()'s kernel, for kernels that fuse it with other work
// (runner/ranks/sum_norm.h). Errors: those of AddRmsNorm().
absl::StatusOr<NormArgs> AddRmsNormArgs(const at::Tensor& delta, const at::Tensor& residual,
                                        const at::Tensor& weight, float eps, const at::Tensor& out,
                                        NormWeight form = NormWeight::kScale);

// `out` may be `x`.
absl::Status LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       float eps, const at::Tensor& out);

// out = LayerNorm(delta + residual), where the sum is first rounded to the dtype. Does not write
// `delta` or `residual`, but `out` may be either of them.
absl::Status AddLayerNorm(const at::Tensor& delta, const at::Tensor& residual,
                          const at::Tensor& weight, const at::Tensor& bias, float eps,
                          const at::Tensor& out);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_NORM_H_
