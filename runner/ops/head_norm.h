// Root-mean-square normalisation of each head of q and k, in place: "QK norm" (Henry et al., 2020).
//
//   x = round(x / sqrt(mean(x^2) + eps)) * weight      Qwen 3, before the rotation
//   x = x / sqrt(mean(x^2) + eps) * (1 + weight)       Gemma 3: NormWeight::kOnePlus
//   x = x / sqrt(mean(x^2) + eps)                      Llama 4, without a weight
//
// The mean is over the dims of a head. Computed in at least float32 and rounded as in RmsNorm()
// (runner/ops/norm.h). A rotation does not change the length of a vector. Without weights, norm and
// rotation may therefore be swapped; only the rounding differs.
//
//   NormaliseHeads(q, k, {.q_weight = q_norm, .k_weight = k_norm, .eps = 1e-6f});
//   RotaryWriteKv(q, k, v, ...);  // or pass the options to this: usually one launch for both
//
// The call does not allocate or synchronise, so it may be captured. On a GPU, the result of a head
// is bitwise independent of the rest of the batch.
//
// Thread safety: safe for concurrent calls, unless one call writes a tensor that another call uses.
// Cost: one launch; q and k are read and written.

#ifndef REPRISE_RUNNER_OPS_HEAD_NORM_H_
#define REPRISE_RUNNER_OPS_HEAD_NORM_H_

#include <ATen/core/Tensor.h>

#include <optional>

#include "absl/status/status.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

struct HeadNormOptions {
  // [head_dim] of q's dtype and device.
  std::optional<at::Tensor> q_weight = {};
  std::optional<at::Tensor> k_weight = {};
  float eps = 1e-6f;
  NormWeight form = NormWeight::kScale;
};

// q [num_tokens, num_q_heads, head_dim] and k [num_tokens, num_kv_heads, head_dim] are float32,
// float16 or bfloat16, of one dtype and device. They may be strided, for example as views of a
// fused projection; the last stride is 1. Errors: InvalidArgument, naming the argument.
absl::Status NormaliseHeads(const at::Tensor& q, const at::Tensor& k,
                            const HeadNormOptions& options);

// Runs the checks of NormaliseHeads(), for operations that include this norm in their own launch.
absl::Status CheckHeadNorm(const at::Tensor& q, const at::Tensor& k,
                           const HeadNormOptions& options);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_HEAD_NORM_H_
