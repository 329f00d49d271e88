// GEMMs with weights. All GEMMs of a step use this interface.
//
//   REPRISE_ASSIGN_OR_RETURN(auto context, MakeLinearContext(device, {}));
//   REPRISE_ASSIGN_OR_RETURN(Linear qkv, Linear::Create(weight, std::nullopt));
//   REPRISE_RETURN_IF_ERROR(qkv.Apply(*context, x, out));   // out = x weight^T
//
// A GPU uses cuBLASLt with float32 accumulation and TF32 off. If in_features is split, partial sums
// are float32 too. By default, the first Apply() of a shape outside capture gets candidates from
// the library and times them on the device, which overwrites `out` several times and synchronises.
// It keeps the first of the library's candidates that is within 5 % of the fastest, so that noise
// rarely decides. Later calls only launch the chosen algorithm. Weights under 4 MiB use the first
// candidate, because their times are mostly launch latency. A shape first seen during capture also
// uses the first candidate, unless the choices file has a choice: warm up before capturing. For
// 16-bit dtypes, this project's kernels are timed too: runner/ops/skinny_linear_args.h for up to 8
// rows, runner/ops/few_rows/tile_linear.h for up to 64 rows, or 128 rows in ApplyGated(). In a
// captured graph, these kernels read weights while the previous kernel runs, so no kernel of the
// graph may write the weights. The CPU uses LibTorch's GEMMs (MKL, oneDNN).
//
// Weights may be 8-bit: fp8 values (e4m3) and float32 scales, as stored in checkpoints. x keeps its
// dtype. On a GPU, GEMMs of up to kMaxFp8Rows 16-bit rows read the fp8 values directly
// (runner/ops/fp8/fp8_linear.h); in deterministic mode, GEMMs of any number of 16-bit rows do. All
// other GEMMs, and shapes that those kernels do not support, convert the weight to x's dtype part
// by part and multiply each part. On a GPU, the context keeps the scratch memory of a part.
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
  // Bytes of device memory for algorithms that split in_features. cuBLAS itself uses 32 MiB on
  // Hopper.
  int64_t workspace_bytes = int64_t{32} << 20;
  // Maximum number of the library's proposals that are timed, at least 1. 1: the first proposal is
  // used without timing, and choices_file is not used.
  int num_timed_candidates = 8;
  // Whether a row's results are bitwise independent of the rest of the batch. Each weight then has
  // one algorithm for any number of rows (of one dtype and alignment), which does not split
  // in_features, and nothing is timed. On the CPU, rows are multiplied one by one.
  bool deterministic = false;
  // A file that stores the choices made by timing (runner/ops/choices/choice_file.h). Other
  // processes that use the file on devices of the same kind, with the same libraries, then make the
  // same choices for these GEMMs and compute bitwise identical results. Choices of this process are
  // added to the file. If a stored choice cannot be used, the candidates are timed again. Empty: no
  // file. Ignored on the CPU and in deterministic mode.
  std::string choices_file = {};
};

// Returns a context for the GEMMs of `device` (CPU or CUDA) and allocates its workspace on a GPU.
// Errors: InvalidArgument, naming the option; Unimplemented for devices that the build does not
// support; ResourceExhausted if device memory runs out; Internal if cuBLASLt cannot be set up.
absl::StatusOr<std::unique_ptr<LinearContext>> MakeLinearContext(
    c10::Device device, const LinearContextOptions& options);

class Linear {
 public:
  // weight [out_features, in_features] float32, float16 or bfloat16; rows may be strided. bias
  // [out_features] has the weight's dtype and device. Errors: InvalidArgument, naming the argument.
  static absl::StatusOr<Linear> Create(at::Tensor weight, std::optional<at::Tensor> bias);

  // weight [out_features, in_features] float8_e4m3fn, without NaN. Each value is multiplied by its
  // scale: scales [out_features, num_groups] float32, where num_groups is 1, or one per 128
  // in_features (the last group may be partial). Rows of both may be strided. bias [out_features]
  // has the dtype of x. All tensors are on one device. Errors: InvalidArgument, naming the
  // argument.
  static absl::StatusOr<Linear> CreateScaled(at::Tensor weight, at::Tensor scales,
                                             std::optional<at::Tensor> bias);

  // out = x weight^T + bias. x [num_rows, in_features] has the weight's dtype; if the weight has
  // scales, x is float32, float16 or bfloat16. out [num_rows, out_features] has x's dtype. Without
  // a bias, out may also be float32. On a GPU, float32 logits then keep the precision of the sum;
  // the CPU first rounds the sum to x's dtype. Rows may be strided; `out` must not overlap `x`.
  // `context` must belong to the weight's device. The call may be captured. Errors:
  // InvalidArgument, naming the argument; Unimplemented if no algorithm supports these strides or
  // alignments; Internal if cuBLASLt or a launch fails; those of LinearContext::MultiplyScaled().
  absl::Status Apply(LinearContext& context, const at::Tensor& x, const at::Tensor& out) const;

  // The first half of a gated feed-forward: computes the GEMM and then out = activation(gate) * up,
  // where the gate is the first half of the GEMM's columns. The result is bitwise identical to
  // Apply(context, x, gate_up) and GateMul(activation, gate_up, out) (runner/ops/elementwise.h) if
  // both use the same GEMM algorithm. gate_up [num_rows, out_features] and out [num_rows,
  // out_features / 2] have x's dtype. gate_up is scratch: its contents are unspecified afterwards.
  // On a GPU, one kernel may compute both for up to 128 rows of a 16-bit dtype, without scales and
  // not in deterministic mode; it is used if timing or the choices file selects it. Otherwise the
  // call uses several kernels. Errors: those of Apply() with `gate_up` as its out, and of
  // GateMul().
  absl::Status ApplyGated(LinearContext& context, Activation activation, const at::Tensor& x,
                          const at::Tensor& gate_up, const at::Tensor& out) const;

  int64_t in_features() const { return weight_.size(1); }
  int64_t out_features() const { return weight_.size(0); }
  const at::Tensor& weight() const { return weight_; }
  const std::optional<at::Tensor>& scales() const { return scales_; }
  // Returns a copy of the weight in `dtype`, [out_features, in_features], multiplied by its scales
  // if it has scales. The product is rounded once to float32 and once to `dtype`; float64 is exact.
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
