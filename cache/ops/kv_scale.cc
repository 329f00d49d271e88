#include "reprise/cache/ops/kv_scale.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/cache/ops/kv_scale_args.h"
#include "reprise/cache/ops/kv_tensors.h"

#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace reprise {
namespace {

float LargestOf(DType dtype) {
  switch (dtype) {
    case DType::kFp8E4M3:
      return 448.0f;
    case DType::kFp8E5M2:
      return 57344.0f;
    default:
      return 1.0f;
  }
}

absl::Status CheckScaleArguments(const at::Tensor& values, const at::Tensor& slot_mapping,
                                 const at::Tensor& scales) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("slot_mapping", slot_mapping, {"num_tokens"}, at::kLong));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("values", values, {AtLeast("num_tokens"), "num_kv_heads", "head_dim"}));
  REPRISE_RETURN_IF_ERROR(dims.Check("scales", scales, {"num_scales"}, at::kFloat));
  if (scales.size(0) != 1 && scales.size(0) != values.size(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("scales must be [1] or [num_kv_heads]: expected ", values.size(1), ", got ",
                     scales.size(0)));
  }
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("slot_mapping", slot_mapping));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("scales", scales));
  REPRISE_RETURN_IF_ERROR(CheckDevice("slot_mapping", slot_mapping, values.device()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("scales", scales, values.device()));
  const std::optional<DType> dtype = FromScalarType(values.scalar_type());
  if (!dtype.has_value() || IsFp8(*dtype) || *dtype == DType::kFloat64) {
    return absl::UnimplementedError(
        absl::StrCat("scales cannot be computed for the dtype of values: expected float32, float16 "
                     "or bfloat16, got ",
                     c10::getDtypeNames(values.scalar_type()).first));
  }
  return absl::OkStatus();
}

template <typename T>
void ComputeScales(const KvScaleArgs& args) {
  const ConstKvTokens& values = args.values;
  std::fill_n(args.scales, args.num_scales, 0.0f);
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    if (args.slot_mapping[token] < 0) continue;
    for (int head = 0; head < args.num_kv_heads; ++head) {
      const T* const from = static_cast<const T*>(values.data) + token * values.token_stride +
                            head * values.head_stride;
      float& scale = args.scales[args.num_scales == 1 ? 0 : head];
      for (int dim = 0; dim < args.head_dim; ++dim) {
        const float magnitude = std::abs(static_cast<float>(from[dim * values.dim_stride]));
        if (std::isfinite(magnitude)) scale = std::max(scale, magnitude / args.range);
      }
    }
  }
  std::replace(args.scales, args.scales + args.num_scales, 0.0f, 1.0f);
}

absl::Status KvScaleOnHost(const KvScaleArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckKvScale(args));
  return WithTokenType<TorchElements>(args.dtype, [&]<typename T>(T) {
    ComputeScales<T>(args);
    return absl::OkStatus();
  });
}

}  // namespace

absl::StatusOr<Scale> ScaleFromTensor(std::string_view argument, const at::Tensor& tensor,
                                      int num_kv_heads) {
  const std::string name(argument);
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is missing: expected a tensor, got an undefined one"));
  }
  REPRISE_RETURN_IF_ERROR(CheckDType(argument, tensor, {at::kFloat}));
  Scale scale = {.data = tensor.const_data_ptr<float>()};
  if (tensor.dim() == 0 || (tensor.dim() == 1 && tensor.size(0) == 1)) return scale;
  if (tensor.dim() == 1 && tensor.size(0) == num_kv_heads) {
    scale.head_stride = tensor.stride(0);
    return scale;
  }
  if (tensor.dim() == 2 && tensor.size(0) >= 1 && tensor.size(1) == num_kv_heads) {
    scale.row_stride = tensor.size(0) == 1 ? 0 : tensor.stride(0);
    scale.head_stride = tensor.stride(1);
    return scale;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      name, " must be [], [1], [num_kv_heads] or [num_table_rows, num_kv_heads]: expected ",
      num_kv_heads, " heads, got [", absl::StrJoin(tensor.sizes(), ", "), "]"));
}

absl::Status ComputeKvScales(const at::Tensor& values, const at::Tensor& slot_mapping,
                             const at::Tensor& scales, const KvScaleOptions& options) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckScaleArguments(values, slot_mapping, scales));
    const KvScaleArgs args = {.values = ConstTokensOf(values),
                              .dtype = *FromScalarType(values.scalar_type()),
                              .slot_mapping = slot_mapping.const_data_ptr<int64_t>(),
                              .num_tokens = slot_mapping.size(0),
                              .num_kv_heads = static_cast<int>(values.size(1)),
                              .head_dim = static_cast<int>(values.size(2)),
                              .scales = scales.mutable_data_ptr<float>(),
                              .num_scales = static_cast<int>(scales.size(0)),
                              .range = options.range.value_or(LargestOf(options.cache_dtype))};
    if (values.is_cpu()) return KvScaleOnHost(args);
#ifdef REPRISE_WITH_CUDA
    if (values.is_cuda()) {
      const c10::cuda::CUDAGuard guard(values.device());
      return LaunchKvScale(args, c10::cuda::getCurrentCUDAStream(values.device().index()).stream());
    }
#endif
    return absl::UnimplementedError(absl::StrCat(
        "scales cannot be computed on the device of values: expected cpu or cuda, got ",
        values.device().str()));
  });
}

}  // namespace reprise
