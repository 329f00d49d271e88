// Root-mean-square normalisation of rows (Zhang and Sennrich, 2019), alone and with a residual
// added first.
//
//   out = round(x / sqrt(mean(x^2) + eps)) * weight         NormWeight::kScale
//   out = x / sqrt(mean(x^2) + eps) * (1 + weight)          NormWeight::kOnePlus
//
// computed in float32; rounded to the dtype before and after the product, as Hugging Face's Llama
// does, or only after it, as its Gemma does.
//
//   RmsNorm(hidden, layer.input_norm, 1e-5f, normed);           // the first layer
//   AddRmsNorm(attended, hidden, layer.mlp_norm, 1e-5f, normed);  // hidden += attended, then norm
//
// Tensors are float32, float16 or bfloat16, all of one dtype and device; rows may be strided,
// within a row the stride is 1. Nothing is allocated or synchronised: may be captured. On a GPU the
// same row gives the same bits whatever else is in the batch.
//
// Thread safety: safe, as far as the tensors are. Errors: InvalidArgument, naming the argument.
// Cost: one launch; reads and writes each row once. At decode sizes the launch is what it costs.

#ifndef RUNNER_OPS_RMS_NORM_H_
#define RUNNER_OPS_RMS_NORM_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "runner/ops/norm_weight.h"

namespace reprise {

// x, out [num_rows, size], weight [size]. `out` may be `x`.
absl::Status RmsNorm(const at::Tensor& x, const at::Tensor& weight, float eps,
                     const at::Tensor& out, NormWeight form = NormWeight::kScale);

// residual += delta, rounded to the dtype; out = RmsNorm(residual). delta, residual, out [num_rows,
// size]. `out` may be `delta`.
absl::Status AddRmsNorm(const at::Tensor& delta, const at::Tensor& residual,
                        const at::Tensor& weight, float eps, const at::Tensor& out,
                        NormWeight form = NormWeight::kScale);

}  // namespace reprise

#endif  // RUNNER_OPS_RMS_NORM_H_
