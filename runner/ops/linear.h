// Matrix products with weights. All matrix products of a step go through here.
//
//   REPRISE_ASSIGN_OR_RETURN(auto context, MakeLinearContext(device, {}));
//   REPRISE_ASSIGN_OR_RETURN(Linear qkv, Linear::Create(weight, std::nullopt));
//   REPRISE_RETURN_IF_ERROR(qkv.Apply(*context, x, out));   // out = x weight^T
//
// A GPU uses cuBLASLt with float32 accumulation and TF32 off; if in_features is split, partial sums
// are float32 too. The first Apply() of a shape outside of capture asks for candidates, times them
// on the device (which overwrites `out` several times and synchronises) and keeps the first that is
// within 5 % of the quickest, so that noise rarely decides. Later calls launch it and do nothing
// else. Weights under 4 MiB, whose times are mostly launch, take the first candidate, and so does a
// shape first seen during capture: warm up before capturing. For 16 bits kernels of
// our own are candidates, too: up to 8 rows runner/ops/skinny_linear_args.h, up to 64
// runner/ops/few_rows/tile_linear.h. In a captured graph they read weights while the kernel before
// them runs, so no kernel of the graph may write them. The CPU uses LibTorch's
// products (MKL, oneDNN).
//
// Weights may have 8 bits: fp8 values (e4m3) and float32 scales, as checkpoints hold them. x keeps
// its own dtype. On a GPU up to kMaxFp8Rows rows of 16 bits read the 8 bits themselves
// (runner/ops/fp8/fp8_linear.h); more rows, and shapes that those kernels do not serve, multiply by
// parts of the weight in x's dtype, one after the other in scratch memory that the context keeps.
//
// A Linear is a value: copies share the weight.

#ifndef REPRISE_RUNNER_OPS_LINEAR_H_
#define REPRISE_RUNNER_OPS_LINEAR_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/runner/ops/linear_context.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

struct LinearContextOptions {
  // Device memory for algorithms that split in_features. cuBLAS itself uses 32 MiB on Hopper.
  int64_t workspace_bytes = int64_t{32} << 20;
  // How many of the library's proposals are timed, at least 1. 1: the first is taken without
  // timing.
  int num_timed_candidates = 8;
  // A row's bits do not depend on the rest of the batch: each weight has one algorithm for any
  // number of rows, which does not split in_features, and nothing is timed. On the CPU rows are
  // multiplied one by one.
  bool deterministic = false;
  // A file in which the choices made by timing are kept (runner/ops/choices/choice_file.h), so that
  // other processes on like devices and with the same libraries make the same ones, and compute the
  // same bits. Choices of this process are added to it. Empty: none. What the file says but cannot
  // be used is chosen anew.
  std::string choices_file = {};
};

// Returns a context for the products of `device`, CPU or CUDA, and allocates its workspace. Errors:
// InvalidArgument, naming the option; Unimplemented for other devices and in builds without CUDA;
// Internal if cuBLASLt cannot be set up.
absl::StatusOr<std::unique_ptr<LinearContext>> MakeLinearContext(
    c10::Device device, const LinearContextOptions& options);

class Linear {
 public:
  // weight [out_features, in_features] float32, float16 or bfloat16, rows may be strided; bias
  // [out_features] of the same dtype and device. Errors: InvalidArgument, naming the argument.
  static absl::StatusOr<Linear> Create(at::Tensor weight, std::optional<at::Tensor> bias);

  // weight [out_features, in_features] float8_e4m3fn, without NaN, each value of which counts times
  // its scale: scales [out_features, num_groups] float32 with num_groups 1, or one for every 128
  // in_features. Rows of both may be strided. bias [out_features] of the dtype of x. All on one
  // device. Errors: InvalidArgument, naming the argument.
  static absl::StatusOr<Linear> CreateScaled(at::Tensor weight, at::Tensor scales,
                                             std::optional<at::Tensor> bias);

  // out = x weight^T + bias. x [num_rows, in_features] has the weight's dtype, or, for a weight
  // with scales, float32, float16 or bfloat16. out [num_rows, out_features] has that of x, too, or,
  // without a bias, float32, for logits that keep the sum's precision. Rows may be strided; `out`
  // must not overlap `x`. `context` is for the weight's device. The call may be captured. Errors:
  // InvalidArgument, naming the argument; Unimplemented if no algorithm supports these strides or
  // alignments; those of LinearContext::MultiplyScaled().
  absl::Status Apply(LinearContext& context, const at::Tensor& x, const at::Tensor& out) const;

  // The first half of a gated feed-forward: out = activation(gate) * up of the product, whose first
  // half of columns is the gate, with the bits of Apply(context, x, gate_up) and GateMul(activation,
  // gate_up, out) (runner/ops/elementwise.h) where the same algorithm multiplies. gate_up [num_rows,
  // out_features] and out [num_rows, out_features / 2] have x's dtype; gate_up holds what it likes
  // afterwards. On a GPU few rows take one kernel. Errors: those of Apply(), of `gate_up` as its out,
  // and of GateMul().
  absl::Status ApplyGated(LinearContext& context, Activation activation, const at::Tensor& x,
                          const at::Tensor& gate_up, const at::Tensor& out) const;

  int64_t in_features() const { return weight_.size(1); }
  int64_t out_features() const { return weight_.size(0); }
  const at::Tensor& weight() const { return weight_; }
  const std::optional<at::Tensor>& scales() const { return scales_; }
  // [out_features, in_features]: the weight in `dtype`, a copy, times its scales if it has some:
  // the product is rounded once to float32 and once to `dtype`; float64 is exact.
  at::Tensor Dequantised(at::ScalarType dtype) const;
  const std::optional<at::Tensor>& bias() const { return bias_; }

 private:
  // Checks the arguments of Apply().
  absl::Status Check(const at::Tensor& x, const at::Tensor& out) const;

  Linear(at::Tensor weight, std::optional<at::Tensor> scales, std::optional<at::Tensor> bias);

  at::Tensor weight_;                 // [out_features, in_features]
  std::optional<at::Tensor> scales_;  // [out_features, num_groups]
  std::optional<at::Tensor> bias_;    // [out_features]
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_LINEAR_H_
