// Normalisation of rows, alone and of a sum: by the root mean square (Zhang and Sennrich, 2019),
// and with a mean, weight and bias (Ba et al., 2016).
//
//   RmsNorm     out = round(x / sqrt(mean(x^2) + eps)) * weight         NormWeight::kScale
//               out = x / sqrt(mean(x^2) + eps) * (1 + weight)          NormWeight::kOnePlus
//   LayerNorm   out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias
//
// Computed in float32 and rounded to the dtype at the end; kScale rounds before the product with
// the weight too, as Hugging Face's Llama does.
//
//   RmsNorm(hidden, layer.input_norm, 1e-5f, normed);             // the first layer
//   AddRmsNorm(attended, hidden, layer.mlp_norm, 1e-5f, normed);  // hidden += attended, then norm
//
//   LayerNorm(hidden, norm.weight, norm.bias, 1e-5f, normed);
//   AddLayerNorm(attended, hidden, norm.weight, norm.bias, 1e-5f, hidden);  // a norm that follows
//
// Shapes: x, delta, residual and out [num_rows, size]; weight and bias [size]. Tensors are float32,
// float16 or bfloat16, all of one dtype and device; rows may be strided, within a row the stride is
// 1. Nothing is allocated or synchronised, so the calls may be captured. On a GPU the same row
// gives the same bits whatever else is in the batch.
//
// Thread safety: safe if the tensors are. Errors: InvalidArgument, naming the argument. Cost: one
// launch; each row is read from memory once. Decode sizes cost the launch.

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

// residual += delta, rounded to the dtype; out = RmsNorm(residual). `out` may be `delta`.
absl::Status AddRmsNorm(const at::Tensor& delta, const at::Tensor& residual,
                        const at::Tensor& weight, float eps, const at::Tensor& out,
                        NormWeight form = NormWeight::kScale);

// What the kernel of AddRmsNorm() is given, for kernels that do it with more (runner/ranks/sum_norm.h).
// Errors: those of AddRmsNorm().
absl::StatusOr<NormArgs> AddRmsNormArgs(const at::Tensor& delta, const at::Tensor& residual,
                                        const at::Tensor& weight, float eps, const at::Tensor& out,
                                        NormWeight form = NormWeight::kScale);

// `out` may be `x`.
absl::Status LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       float eps, const at::Tensor& out);

// out = LayerNorm(delta + residual), the sum rounded to the dtype first. `delta` and `residual` are
// not written, but `out` may be either of them.
absl::Status AddLayerNorm(const at::Tensor& delta, const at::Tensor& residual,
                          const at::Tensor& weight, const at::Tensor& bias, float eps,
                          const at::Tensor& out);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_NORM_H_
