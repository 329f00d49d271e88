// State shared by the GEMMs of one device. On a GPU: the cuBLASLt handle, a workspace of fixed
// size, and the algorithm chosen for each shape. The context must outlive the graphs that were
// captured with it. The owner is the runner, or another caller that captures. Created by
// MakeLinearContext() (runner/ops/linear.h).
//
// Thread safety: none. Use one stream at a time, because all GEMMs of a context share its
// workspace.

#ifndef REPRISE_RUNNER_OPS_LINEAR_CONTEXT_H_
#define REPRISE_RUNNER_OPS_LINEAR_CONTEXT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"
#include "reprise/runner/ops/few_rows/tile_linear_plan.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

// The algorithm used for a shape, and the reason for it, for reports.
struct LinearChoice {
  enum class Source {
    kTimed,       // chosen by timing the candidates
    kHeuristic,   // the library's first proposal: not timed (option, SetTiming() or small weight)
    kCaptured,    // the first proposal: a shape first seen during capture cannot be timed
    kRemembered,  // timed by another process, or earlier (LinearContextOptions::choices_file)
  };
  int64_t num_rows = 0;  // 0: serves any number of rows (deterministic mode)
  int64_t in_features = 0;
  int64_t out_features = 0;
  DType dtype = DType::kFloat32;  // x and weight
  DType out_dtype = DType::kFloat32;
  bool is_gated = false;  // MultiplyGated(); times include the gate
  Source source = Source::kHeuristic;
  int num_candidates = 0;
  float best_us = 0;   // time of the chosen algorithm; 0 if not timed
  float first_us = 0;  // time of the library's first proposal; 0 if not timed
  int algorithm = 0;   // the library's id of the kernel family
  int tile = 0;        // cublasLtMatmulTile_t
  int split_k = 1;     // 1: one CTA computes the whole sum over in_features
  // Above 0: the project's kernel for up to 8 rows replaces the library's algorithm and uses strips
  // of this many units (runner/ops/skinny_linear_args.h).
  int skinny_strip = 0;
  // If set: the project's tile kernel replaces the library's algorithm
  // (runner/ops/few_rows/tile_linear.h).
  std::optional<TileForm> tile_form = std::nullopt;
};

// Whether shapes that are seen for the first time are timed, if the context's options enable
// timing.
enum class LinearTiming : int8_t { kOn, kOff };

// Maximum number of rows of x for which GEMMs on a GPU read 8-bit weights directly, except in
// deterministic mode, which has no maximum.
inline constexpr int64_t kMaxFp8Rows = 64;

class LinearContext {
 public:
  virtual ~LinearContext() = default;

  // out = x weight^T + bias. REQUIRES: the caller, for example Linear, has checked shapes and
  // devices. `bias` may be null. With a third, leading dimension, the call is a batch of GEMMs
  // without a bias: x [num_products, num_rows, in_features], weight [num_products, out_features,
  // in_features], out [num_products, num_rows, out_features].
  virtual absl::Status Multiply(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor* bias, const at::Tensor& out) = 0;

  // out = activation(gate) * up, as GateMul() (runner/ops/elementwise.h) computes it from gate_up =
  // x weight^T + bias. The result is bitwise identical to two separate calls if both use the same
  // GEMM algorithm. gate_up [num_rows, out_features] is scratch; the project's kernels write only
  // `out` [num_rows, out_features / 2].
  virtual absl::Status MultiplyGated(Activation activation, const at::Tensor& x,
                                     const at::Tensor& weight, const at::Tensor* bias,
                                     const at::Tensor& gate_up, const at::Tensor& out);

  // Multiply() for an 8-bit weight with scales, as in Linear::CreateScaled(). On a GPU, a call that
  // needs more scratch memory than the context has allocates it. Errors: FailedPrecondition if that
  // call is captured; Unimplemented on a GPU if a size of the weight is 2^31 or more.
  virtual absl::Status MultiplyScaled(const at::Tensor& x, const at::Tensor& weight,
                                      const at::Tensor& scales, const at::Tensor* bias,
                                      const at::Tensor& out) = 0;

  // Whether a row's results are bitwise independent of the contents and the number of the other
  // rows (LinearContextOptions::deterministic).
  virtual bool is_deterministic() const = 0;

  // Switches timing for shapes first seen from now on; initially kOn. Timing synchronises: switch
  // it off if a new shape must not be slow, for example the prompts of a server. Shapes seen before
  // keep their algorithm.
  virtual void SetTiming(LinearTiming timing) = 0;

  // Returns the choices so far, in the order in which they were made. On the CPU, returns no
  // choices.
  virtual std::vector<LinearChoice> Choices() const = 0;
};

// Returns a text such as "rows 16, 4096 -> 6144 bfloat16: algorithm 66 tile 20 split 1, 21.3 us
// (first proposal 24.0 us, best of 8)"
std::string ToString(const LinearChoice& choice);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_LINEAR_CONTEXT_H_
