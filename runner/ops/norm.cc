#include "reprise/runner/ops/norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "reprise/base/parallel/parallel_for.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/runner/ops/activation_type.h"
#include "reprise/runner/ops/norms/norm_args.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/runner/ops/cuda_launch.h"
#endif

namespace reprise {
namespace {

// Sums of squares use this many lanes, for the vectoriser, over blocks of this many elements. The
// sums of blocks are added in float64, so that the error does not grow with the row.
constexpr int kLanes = 16;
constexpr int64_t kBlock = 64 * kLanes;

// Minimum number of elements per task.
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
void RmsNormRow(const NormArgs& args, const T* row, T* out) {
  const int64_t size = args.size;
  const T* const weight = static_cast<const T*>(args.weight);
  const float scale =
      1.0f / std::sqrt(SumOfSquares(row, size) / static_cast<float>(size) + args.eps);
  if (args.kind == NormKind::kRmsOnePlus) {
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

// Sums are float64, so that their error does not grow with the row. The variance is computed from
// the differences to the mean, which avoids cancellation if the mean is large.
template <typename T>
void LayerNormRow(const NormArgs& args, const T* row, T* out) {
  const int64_t size = args.size;
  const T* const weight = static_cast<const T*>(args.weight);
  const T* const bias = static_cast<const T*>(args.bias);
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += static_cast<float>(row[i]);
  const float mean = static_cast<float>(sum / static_cast<double>(size));
  double squares = 0;
  for (int64_t i = 0; i < size; ++i) {
    const float difference = static_cast<float>(row[i]) - mean;
    squares += static_cast<double>(difference) * difference;
  }
  const double variance = squares / static_cast<double>(size);
  const float scale = static_cast<float>(1.0 / std::sqrt(variance + args.eps));
  for (int64_t i = 0; i < size; ++i) {
    out[i] =
        static_cast<T>((static_cast<float>(row[i]) - mean) * scale * static_cast<float>(weight[i]) +
                       static_cast<float>(bias[i]));
  }
}

template <typename T>
void AddRows(const T* a, const T* b, int64_t size, T* sum) {
  for (int64_t i = 0; i < size; ++i) {
    sum[i] = static_cast<T>(static_cast<float>(a[i]) + static_cast<float>(b[i]));
  }
}

template <typename T>
void NormOnHost(const NormArgs& args) {
  const int64_t grain = std::max<int64_t>(1, kGrainElements / args.size);
  ParallelFor(0, args.num_rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* input = static_cast<const T*>(args.x) + row * args.x_stride;
      T* const out = static_cast<T*>(args.out) + row * args.out_stride;
      if (args.residual != nullptr) {
        T* const residual = static_cast<T*>(args.residual) + row * args.residual_stride;
        T* const sum = args.kind == NormKind::kLayer ? out : residual;
        AddRows(input, residual, args.size, sum);
        input = sum;
      }
      if (args.kind == NormKind::kLayer) {
        LayerNormRow(args, input, out);
      } else {
        RmsNormRow(args, input, out);
      }
    }
  });
}

// The tensors of a norm. `x_name`: the caller's name of `x`. `residual`, `bias`: null if unused.
struct Tensors {
  const char* x_name;
  const at::Tensor& x;
  const at::Tensor* residual;
  const at::Tensor& weight;
  const at::Tensor* bias;
  const at::Tensor& out;
};

absl::Status Check(const Tensors& tensors) {
  const at::Tensor& x = tensors.x;
  ShapeChecker dims;
  const auto check = [&](const char* name, const at::Tensor& tensor,
                         std::initializer_list<Dim> shape) -> absl::Status {
    REPRISE_RETURN_IF_ERROR(dims.Check(name, tensor, shape, x.scalar_type()));
    REPRISE_RETURN_IF_ERROR(CheckDevice(name, tensor, x.device()));
    return CheckLastStrideIsOne(name, tensor);
  };
  REPRISE_RETURN_IF_ERROR(dims.Check(tensors.x_name, x, {"num_rows", "size"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType(tensors.x_name, x));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(tensors.x_name, x));
  if (tensors.residual != nullptr) {
    REPRISE_RETURN_IF_ERROR(check("residual", *tensors.residual, {"num_rows", "size"}));
  }
  REPRISE_RETURN_IF_ERROR(check("weight", tensors.weight, {"size"}));
  if (tensors.bias != nullptr) REPRISE_RETURN_IF_ERROR(check("bias", *tensors.bias, {"size"}));
  return check("out", tensors.out, {"num_rows", "size"});
}

absl::StatusOr<NormArgs> CheckedArgs(NormKind kind, const Tensors& tensors, float eps) {
  REPRISE_RETURN_IF_ERROR(Check(tensors));
  const at::Tensor& x = tensors.x;
  const at::Tensor* const residual = tensors.residual;
  return NormArgs{
      .kind = kind,
      .dtype = *FromScalarType(x.scalar_type()),
      .x = x.const_data_ptr(),
      .x_stride = x.stride(0),
      .residual = residual != nullptr ? residual->mutable_data_ptr() : nullptr,
      .residual_stride = residual != nullptr ? residual->stride(0) : 0,
      .weight = tensors.weight.const_data_ptr(),
      .bias = tensors.bias != nullptr ? tensors.bias->const_data_ptr() : nullptr,
      .out = tensors.out.mutable_data_ptr(),
      .out_stride = tensors.out.stride(0),
      .num_rows = static_cast<int>(x.size(0)),
      .size = static_cast<int>(x.size(1)),
      .eps = eps,
  };
}

absl::Status Normalise(NormKind kind, const Tensors& tensors, float eps) {
  REPRISE_ASSIGN_OR_RETURN(const NormArgs args, CheckedArgs(kind, tensors, eps));
  const at::Tensor& x = tensors.x;
  if (x.numel() == 0) return absl::OkStatus();
#ifdef REPRISE_WITH_CUDA
  if (x.is_cuda()) {
    return LaunchOnCurrentStream(x, [&](cudaStream_t stream) { return LaunchNorm(args, stream); });
  }
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice(tensors.x_name, x, at::kCPU));
  VisitActivationType(x.scalar_type(), [&](auto zero) { NormOnHost<decltype(zero)>(args); });
  return absl::OkStatus();
}

NormKind KindOf(NormWeight form) {
  return form == NormWeight::kOnePlus ? NormKind::kRmsOnePlus : NormKind::kRms;
}

}  // namespace

absl::Status RmsNorm(const at::Tensor& x, const at::Tensor& weight, float eps,
                     const at::Tensor& out, NormWeight form) {
  return Normalise(KindOf(form), {"x", x, nullptr, weight, nullptr, out}, eps);
}

absl::Status AddRmsNorm(const at::Tensor& delta, const at::Tensor& residual,
                        const at::Tensor& weight, float eps, const at::Tensor& out,
                        NormWeight form) {
  return Normalise(KindOf(form), {"delta", delta, &residual, weight, nullptr, out}, eps);
}

absl::StatusOr<NormArgs> AddRmsNormArgs(const at::Tensor& delta, const at::Tensor& residual,
                                        const at::Tensor& weight, float eps, const at::Tensor& out,
                                        NormWeight form) {
  return CheckedArgs(KindOf(form), {"delta", delta, &residual, weight, nullptr, out}, eps);
}

absl::Status LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       float eps, const at::Tensor& out) {
  return Normalise(NormKind::kLayer, {"x", x, nullptr, weight, &bias, out}, eps);
}

absl::Status AddLayerNorm(const at::Tensor& delta, const at::Tensor& residual,
                          const at::Tensor& weight, const at::Tensor& bias, float eps,
                          const at::Tensor& out) {
  return Normalise(NormKind::kLayer, {"delta", delta, &residual, weight, &bias, out}, eps);
}

}  // namespace reprise
