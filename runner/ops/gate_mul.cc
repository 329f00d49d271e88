#include "runner/ops/gate_mul.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "base/shape_check.h"
#include "base/status_macros.h"
#include "runner/ops/activation_type.h"
#ifdef REPRISE_WITH_CUDA
#include "base/torch_dtype.h"
#include "runner/ops/cuda_launch.h"
#include "runner/ops/gate_mul_kernel.h"
#endif

namespace reprise {
namespace {

// Elements that are worth a task of their own: an exp each.
constexpr int64_t kGrainElements = 4096;

template <typename T, Activation kActivation>
void GateMulOnHost(const at::Tensor& gate_up, const at::Tensor& out) {
  const int64_t size = out.size(1);
  const int64_t grain = std::max<int64_t>(1, kGrainElements / size);
  at::parallel_for(0, out.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gate = gate_up.const_data_ptr<T>() + row * gate_up.stride(0);
      const T* up = gate + size;
      T* result = out.mutable_data_ptr<T>() + row * out.stride(0);
      for (int64_t i = 0; i < size; ++i) {
        const T activated = static_cast<T>(Activate<kActivation>(gate[i]));
        result[i] = static_cast<T>(static_cast<float>(activated) * static_cast<float>(up[i]));
      }
    }
  });
}

#ifdef REPRISE_WITH_CUDA
absl::Status GateMulOnGpu(Activation activation, const at::Tensor& gate_up, const at::Tensor& out) {
  const GateMulParams params = {
      .dtype = *FromScalarType(out.scalar_type()),
      .activation = activation,
      .gate_up = gate_up.const_data_ptr(),
      .gate_up_stride = gate_up.stride(0),
      .out = out.mutable_data_ptr(),
      .out_stride = out.stride(0),
      .num_rows = static_cast<int>(out.size(0)),
      .size = static_cast<int>(out.size(1)),
  };
  return LaunchOnCurrentStream("GateMul", out,
                               [&](cudaStream_t stream) { return LaunchGateMul(params, stream); });
}
#endif

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

#ifdef REPRISE_WITH_CUDA
  if (out.is_cuda()) return GateMulOnGpu(activation, gate_up, out);
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice("out", out, at::kCPU));
  VisitActivationType(out.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    switch (activation) {
      case Activation::kSilu:
        return GateMulOnHost<T, Activation::kSilu>(gate_up, out);
      case Activation::kGeluTanh:
        return GateMulOnHost<T, Activation::kGeluTanh>(gate_up, out);
    }
  });
  return absl::OkStatus();
}

}  // namespace reprise
