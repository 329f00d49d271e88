#include "runner/ops/layer_norm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/shape_check.h"
#include "base/status_macros.h"
#include "runner/ops/activation_type.h"
#ifdef REPRISE_WITH_CUDA
#include "base/torch_dtype.h"
#include "runner/ops/cuda_launch.h"
#include "runner/ops/layer_norm_kernel.h"
#endif

namespace reprise {
namespace {

// Rows that are worth a task of their own.
constexpr int64_t kGrainElements = 16384;

// `residual`: null if there is none.
struct Rows {
  const at::Tensor& x;
  const at::Tensor* residual;
  const at::Tensor& weight;
  const at::Tensor& bias;
  float eps;
  const at::Tensor& out;
};

// Sums are float64, so that their error does not grow with the row. The variance is that of the
// differences to the mean: a large mean cancels nothing.
template <typename T>
void NormaliseRow(const T* row, const T* weight, const T* bias, float eps, int64_t size, T* out) {
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += static_cast<float>(row[i]);
  const float mean = static_cast<float>(sum / static_cast<double>(size));
  double squares = 0;
  for (int64_t i = 0; i < size; ++i) {
    const float difference = static_cast<float>(row[i]) - mean;
    squares += static_cast<double>(difference) * difference;
  }
  const double variance = squares / static_cast<double>(size);
  const float scale = static_cast<float>(1.0 / std::sqrt(variance + eps));
  for (int64_t i = 0; i < size; ++i) {
    out[i] =
        static_cast<T>((static_cast<float>(row[i]) - mean) * scale * static_cast<float>(weight[i]) +
                       static_cast<float>(bias[i]));
  }
}

template <typename T>
void NormaliseOnHost(const Rows& rows) {
  const int64_t size = rows.x.size(1);
  const T* const weight = rows.weight.const_data_ptr<T>();
  const T* const bias = rows.bias.const_data_ptr<T>();
  const int64_t grain = std::max<int64_t>(1, kGrainElements / size);
  at::parallel_for(0, rows.x.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* input = rows.x.const_data_ptr<T>() + row * rows.x.stride(0);
      T* const out = rows.out.mutable_data_ptr<T>() + row * rows.out.stride(0);
      if (rows.residual != nullptr) {
        const T* const residual =
            rows.residual->const_data_ptr<T>() + row * rows.residual->stride(0);
        for (int64_t i = 0; i < size; ++i) {
          out[i] = static_cast<T>(static_cast<float>(input[i]) + static_cast<float>(residual[i]));
        }
        input = out;
      }
      NormaliseRow(input, weight, bias, rows.eps, size, out);
    }
  });
}

#ifdef REPRISE_WITH_CUDA
absl::Status NormaliseOnGpu(const Rows& rows) {
  const LayerNormParams params = {
      .dtype = *FromScalarType(rows.x.scalar_type()),
      .x = rows.x.const_data_ptr(),
      .x_stride = rows.x.stride(0),
      .residual = rows.residual != nullptr ? rows.residual->const_data_ptr() : nullptr,
      .residual_stride = rows.residual != nullptr ? rows.residual->stride(0) : 0,
      .weight = rows.weight.const_data_ptr(),
      .bias = rows.bias.const_data_ptr(),
      .out = rows.out.mutable_data_ptr(),
      .out_stride = rows.out.stride(0),
      .num_rows = static_cast<int>(rows.x.size(0)),
      .size = static_cast<int>(rows.x.size(1)),
      .eps = rows.eps,
  };
  return LaunchOnCurrentStream(
      "LayerNorm", rows.x, [&](cudaStream_t stream) { return LaunchLayerNorm(params, stream); });
}
#endif

// `x_name`: what the caller calls `x`.
absl::Status Normalise(const char* x_name, const Rows& rows) {
  const at::Tensor& x = rows.x;
  ShapeChecker dims;
  const auto check_rows = [&](const char* name, const at::Tensor& tensor) -> absl::Status {
    REPRISE_RETURN_IF_ERROR(dims.Check(name, tensor, {"num_rows", "size"}, x.scalar_type()));
    REPRISE_RETURN_IF_ERROR(CheckDevice(name, tensor, x.device()));
    return CheckLastStrideIsOne(name, tensor);
  };
  const auto check_vector = [&](const char* name, const at::Tensor& tensor) -> absl::Status {
    REPRISE_RETURN_IF_ERROR(dims.Check(name, tensor, {"size"}, x.scalar_type()));
    REPRISE_RETURN_IF_ERROR(CheckDevice(name, tensor, x.device()));
    return CheckLastStrideIsOne(name, tensor);
  };
  REPRISE_RETURN_IF_ERROR(dims.Check(x_name, x, {"num_rows", "size"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType(x_name, x));
  REPRISE_RETURN_IF_ERROR(check_rows(x_name, x));
  if (rows.residual != nullptr) REPRISE_RETURN_IF_ERROR(check_rows("residual", *rows.residual));
  REPRISE_RETURN_IF_ERROR(check_vector("weight", rows.weight));
  REPRISE_RETURN_IF_ERROR(check_vector("bias", rows.bias));
  REPRISE_RETURN_IF_ERROR(check_rows("out", rows.out));
  if (x.numel() == 0) return absl::OkStatus();

#ifdef REPRISE_WITH_CUDA
  if (x.is_cuda()) return NormaliseOnGpu(rows);
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice(x_name, x, at::kCPU));
  VisitActivationType(x.scalar_type(), [&](auto zero) { NormaliseOnHost<decltype(zero)>(rows); });
  return absl::OkStatus();
}

}  // namespace

absl::Status LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       float eps, const at::Tensor& out) {
  return Normalise(
      "x", {.x = x, .residual = nullptr, .weight = weight, .bias = bias, .eps = eps, .out = out});
}

absl::Status AddLayerNorm(const at::Tensor& delta, const at::Tensor& residual,
                          const at::Tensor& weight, const at::Tensor& bias, float eps,
                          const at::Tensor& out) {
  return Normalise(
      "delta",
      {.x = delta, .residual = &residual, .weight = weight, .bias = bias, .eps = eps, .out = out});
}

}  // namespace reprise
