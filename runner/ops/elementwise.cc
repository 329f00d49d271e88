#include "reprise/runner/ops/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "reprise/base/parallel/parallel_for.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/runner/ops/activation_type.h"
#include "reprise/runner/ops/elementwise_args.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/runner/ops/cuda_launch.h"
#endif

namespace reprise {
namespace {

// Minimum number of elements per task. Most functions cost an exp, tanh or erfc per element.
constexpr int64_t kGrainElements = 4096;

// Applies `function` to the elements [first, last) of a head of a row.
template <typename Function, typename T>
void ApplyToPiece(Function function, const T* x, int64_t size, int64_t first, int64_t last,
                  T* out) {
  for (int64_t i = first; i < last; ++i) {
    float value = function(static_cast<float>(x[i]));
    if constexpr (Function::kIsGated) {
      value = static_cast<float>(static_cast<T>(value)) *
              Function::Factor(static_cast<float>(x[size + i]));
    }
    out[i] = static_cast<T>(value);
  }
}

template <typename Function, typename T>
void ApplyOnHost(const ElementwiseArgs& args) {
  const int64_t size = args.size;
  const int64_t num_elements = int64_t{args.num_rows} * args.num_heads * size;
  // Rows may be long (rows of logits, for example), so a task may be a part of a row.
  ParallelFor(0, num_elements, kGrainElements, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / size / args.num_heads;
      const int64_t head = begin / size % args.num_heads;
      const int64_t first = begin % size;
      const int64_t last = std::min(size, first + end - begin);
      begin += last - first;
      const Function function = Function::OfRow(args, row);
      if (function.IsIdentity()) continue;
      const T* const x =
          static_cast<const T*>(args.x) + row * args.x_stride + head * args.head_stride;
      T* const out = static_cast<T*>(args.out) + row * args.out_stride + head * args.head_stride;
      ApplyToPiece(function, x, size, first, last, out);
    }
  });
}

// Runs on the device of `out`. REQUIRES: the caller has checked all arguments.
absl::Status Run(const at::Tensor& out, const ElementwiseArgs& args) {
#ifdef REPRISE_WITH_CUDA
  if (out.is_cuda()) {
    return LaunchOnCurrentStream(
        out, [&](cudaStream_t stream) { return LaunchElementwise(args, stream); });
  }
#endif
  VisitActivationType(out.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    VisitElementwiseFunction(args.function,
                             [&]<typename Function>() { ApplyOnHost<Function, T>(args); });
  });
  return absl::OkStatus();
}

absl::Status CheckHasKernels(const char* name, const at::Tensor& tensor) {
#ifdef REPRISE_WITH_CUDA
  if (tensor.is_cuda()) return absl::OkStatus();
#endif
  return CheckDevice(name, tensor, at::kCPU);
}

// Checks x [num_rows, size], which is updated in place.
absl::Status CheckRows(const at::Tensor& x) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("x", x, {"num_rows", "size"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("x", x));
  return CheckLastStrideIsOne("x", x);
}

ElementwiseArgs ArgsInPlace(ElementwiseFunction function, const at::Tensor& x) {
  return {.function = function,
          .dtype = *FromScalarType(x.scalar_type()),
          .x = x.const_data_ptr(),
          .x_stride = x.stride(0),
          .out = x.mutable_data_ptr(),
          .out_stride = x.stride(0),
          .num_rows = static_cast<int>(x.size(0)),
          .size = static_cast<int>(x.size(1))};
}

}  // namespace

absl::Status GateMul(Activation activation, const at::Tensor& gate_up, const at::Tensor& out) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("out", out, {"num_rows", "size"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("out", out));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out", out));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("gate_up", gate_up, {"num_rows", 2 * dims.size("size")}, out.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("gate_up", gate_up, out.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("gate_up", gate_up));
  if (out.numel() == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckHasKernels("out", out));
  return Run(out, {.function = GateFunctionOf(activation),
                   .dtype = *FromScalarType(out.scalar_type()),
                   .x = gate_up.const_data_ptr(),
                   .x_stride = gate_up.stride(0),
                   .out = out.mutable_data_ptr(),
                   .out_stride = out.stride(0),
                   .num_rows = static_cast<int>(out.size(0)),
                   .size = static_cast<int>(out.size(1))});
}

absl::Status Gelu(const at::Tensor& x, GeluForm form) {
  REPRISE_RETURN_IF_ERROR(CheckRows(x));
  if (x.numel() == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckHasKernels("x", x));
  return Run(x, ArgsInPlace(form == GeluForm::kErf ? ElementwiseFunction::kGelu
                                                   : ElementwiseFunction::kGeluTanh,
                            x));
}

absl::Status Softcap(const at::Tensor& x, float cap) {
  REPRISE_RETURN_IF_ERROR(CheckRows(x));
  if (!(cap > 0) || !std::isfinite(cap)) {
    return absl::InvalidArgumentError(absl::StrCat("cap must be positive and finite: got ", cap));
  }
  if (x.numel() == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckHasKernels("x", x));
  ElementwiseArgs args = ArgsInPlace(ElementwiseFunction::kSoftcap, x);
  args.cap = cap;
  return Run(x, args);
}

absl::Status TemperQueries(const at::Tensor& q, const at::Tensor& positions,
                           const QueryTemperature& temperature) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("q", q, {"num_tokens", "num_q_heads", "head_dim"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("q", q));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("q", q));
  REPRISE_RETURN_IF_ERROR(dims.Check("positions", positions, {"num_tokens"}, at::kInt));
  REPRISE_RETURN_IF_ERROR(CheckDevice("positions", positions, q.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("positions", positions));
  if (!(temperature.floor_scale > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("floor_scale must be positive: got ", temperature.floor_scale));
  }
  if (q.numel() == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckHasKernels("q", q));
  ElementwiseArgs args = {.function = ElementwiseFunction::kTemperature,
                          .dtype = *FromScalarType(q.scalar_type()),
                          .x = q.const_data_ptr(),
                          .x_stride = q.stride(0),
                          .out = q.mutable_data_ptr(),
                          .out_stride = q.stride(0),
                          .num_rows = static_cast<int>(q.size(0)),
                          .positions = positions.const_data_ptr<int32_t>(),
                          .temperature = temperature};
  if (q.stride(1) == q.size(2)) {  // heads without gaps form one long row
    args.size = static_cast<int>(q.size(1) * q.size(2));
  } else {
    args.head_stride = q.stride(1);
    args.num_heads = static_cast<int>(q.size(1));
    args.size = static_cast<int>(q.size(2));
  }
  return Run(q, args);
}

}  // namespace reprise
