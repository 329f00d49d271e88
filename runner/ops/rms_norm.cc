#include "runner/ops/rms_norm.h"

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
#include "runner/ops/rms_norm_kernel.h"
#endif

namespace reprise {
namespace {

// Sums of squares in this many lanes, for the vectoriser, over blocks of so many elements, whose
// sums are added in float64: the error does not grow with the row.
constexpr int kLanes = 16;
constexpr int64_t kBlock = 64 * kLanes;

// Rows that are worth a task of their own.
constexpr int64_t kGrainElements = 16384;

template <typename T>
float SumOfSquares(const T* row, int64_t size) {
  double sum = 0;
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, size);
    float lanes[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float value = row[i + lane];
        lanes[lane] += value * value;
      }
    }
    for (; i < end; ++i) lanes[0] += static_cast<float>(row[i]) * static_cast<float>(row[i]);
    for (float lane : lanes) sum += lane;
  }
  return static_cast<float>(sum);
}

template <typename T>
void NormaliseRow(const T* row, const T* weight, float eps, int64_t size, NormWeight form, T* out) {
  const float scale = 1.0f / std::sqrt(SumOfSquares(row, size) / static_cast<float>(size) + eps);
  if (form == NormWeight::kOnePlus) {
    for (int64_t i = 0; i < size; ++i) {
      out[i] = static_cast<T>(static_cast<float>(row[i]) * scale *
                              (1.0f + static_cast<float>(weight[i])));
    }
    return;
  }
  for (int64_t i = 0; i < size; ++i) {
    const T normalised = static_cast<T>(static_cast<float>(row[i]) * scale);
    out[i] = static_cast<T>(static_cast<float>(normalised) * static_cast<float>(weight[i]));
  }
}

template <typename T>
void AddRow(const T* delta, int64_t size, T* residual) {
  for (int64_t i = 0; i < size; ++i) {
    residual[i] = static_cast<T>(static_cast<float>(residual[i]) + static_cast<float>(delta[i]));
  }
}

template <typename T>
void NormaliseOnHost(const at::Tensor& x, const at::Tensor* residual, const at::Tensor& weight,
                     float eps, const at::Tensor& out, NormWeight form) {
  const int64_t size = x.size(1);
  const T* weights = weight.const_data_ptr<T>();
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, size));
  at::parallel_for(0, x.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* input = x.const_data_ptr<T>() + row * x.stride(0);
      if (residual != nullptr) {
        T* sum = residual->mutable_data_ptr<T>() + row * residual->stride(0);
        AddRow(input, size, sum);
        input = sum;
      }
      NormaliseRow(input, weights, eps, size, form,
                   out.mutable_data_ptr<T>() + row * out.stride(0));
    }
  });
}

#ifdef REPRISE_WITH_CUDA
absl::Status NormaliseOnGpu(const at::Tensor& x, const at::Tensor* residual,
                            const at::Tensor& weight, float eps, const at::Tensor& out,
                            NormWeight form) {
  const RmsNormParams params = {
      .dtype = *FromScalarType(x.scalar_type()),
      .x = x.const_data_ptr(),
      .x_stride = x.stride(0),
      .residual = residual != nullptr ? residual->mutable_data_ptr() : nullptr,
      .residual_stride = residual != nullptr ? residual->stride(0) : 0,
      .weight = weight.const_data_ptr(),
      .one_plus_weight = form == NormWeight::kOnePlus,
      .out = out.mutable_data_ptr(),
      .out_stride = out.stride(0),
      .num_rows = static_cast<int>(x.size(0)),
      .size = static_cast<int>(x.size(1)),
      .eps = eps,
  };
  return LaunchOnCurrentStream("RmsNorm", x,
                               [&](cudaStream_t stream) { return LaunchRmsNorm(params, stream); });
}
#endif

// `x_name`: what the caller calls `x`. `residual`: null if there is none.
absl::Status Normalise(const char* x_name, const at::Tensor& x, const at::Tensor* residual,
                       const at::Tensor& weight, float eps, const at::Tensor& out,
                       NormWeight form) {
  ShapeChecker dims;
  const auto check_rows = [&](const char* name, const at::Tensor& rows) -> absl::Status {
    REPRISE_RETURN_IF_ERROR(dims.Check(name, rows, {"num_rows", "size"}, x.scalar_type()));
    REPRISE_RETURN_IF_ERROR(CheckDevice(name, rows, x.device()));
    return CheckLastStrideIsOne(name, rows);
  };
  REPRISE_RETURN_IF_ERROR(dims.Check(x_name, x, {"num_rows", "size"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType(x_name, x));
  REPRISE_RETURN_IF_ERROR(check_rows(x_name, x));
  if (residual != nullptr) REPRISE_RETURN_IF_ERROR(check_rows("residual", *residual));
  REPRISE_RETURN_IF_ERROR(dims.Check("weight", weight, {"size"}, x.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("weight", weight, x.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("weight", weight));
  REPRISE_RETURN_IF_ERROR(check_rows("out", out));
  if (x.numel() == 0) return absl::OkStatus();

#ifdef REPRISE_WITH_CUDA
  if (x.is_cuda()) return NormaliseOnGpu(x, residual, weight, eps, out, form);
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice(x_name, x, at::kCPU));
  VisitActivationType(x.scalar_type(), [&](auto zero) {
    NormaliseOnHost<decltype(zero)>(x, residual, weight, eps, out, form);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status RmsNorm(const at::Tensor& x, const at::Tensor& weight, float eps,
                     const at::Tensor& out, NormWeight form) {
  return Normalise("x", x, nullptr, weight, eps, out, form);
}

absl::Status AddRmsNorm(const at::Tensor& delta, const at::Tensor& residual,
                        const at::Tensor& weight, float eps, const at::Tensor& out,
                        NormWeight form) {
  return Normalise("delta", delta, &residual, weight, eps, out, form);
}

}  // namespace reprise
