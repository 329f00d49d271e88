// Normalisation of rows with a mean (Ba et al., 2016), alone and of a sum.
//
//   out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias
//
// computed in float32 and rounded once, as LibTorch's layer_norm does.
//
//   LayerNorm(hidden, norm.weight, norm.bias, 1e-5f, normed);
//   AddLayerNorm(attended, hidden, norm.weight, norm.bias, 1e-5f, hidden);  // a norm that follows
//
// Tensors are float32, float16 or bfloat16, all of one dtype and device; rows may be strided,
// within a row the stride is 1. Nothing is allocated or synchronised: may be captured. On a GPU the
// same row gives the same bits whatever else is in the batch.
//
// Thread safety: safe, as far as the tensors are. Errors: InvalidArgument, naming the argument.
// Cost: one launch; each row comes from memory once. At decode sizes the launch is what it costs.

#ifndef RUNNER_OPS_LAYER_NORM_H_
#define RUNNER_OPS_LAYER_NORM_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"

namespace reprise {

// x, out [num_rows, size]; weight, bias [size]. `out` may be `x`.
absl::Status LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       float eps, const at::Tensor& out);

// out = LayerNorm(delta + residual), the sum rounded to the dtype first. delta, residual, out
// [num_rows, size]; the first two are not written, but `out` may be either of them.
absl::Status AddLayerNorm(const at::Tensor& delta, const at::Tensor& residual,
                          const at::Tensor& weight, const at::Tensor& bias, float eps,
                          const at::Tensor& out);

}  // namespace reprise

#endif  // RUNNER_OPS_LAYER_NORM_H_
