#include "reprise/cache/ops/kv_tensors.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/cache/storage/kv_layout.h"

namespace reprise {

absl::Status CheckKvTensors(const KvLayer& kv, const at::Tensor& k, const at::Tensor& v,
                            ShapeChecker& dims) {
  dims.Bind("num_kv_heads", kv.num_kv_heads);
  dims.Bind("head_dim_qk", kv.head_dim_qk);
  dims.Bind("head_dim_v", kv.head_dim_v);
  REPRISE_RETURN_IF_ERROR(
      dims.Check("k", k, {AtLeast("num_tokens"), "num_kv_heads", "head_dim_qk"}));
  if (IsLatent(kv) && !v.defined()) return absl::OkStatus();
  // In a cache without blocks, K and V both have a null address, even if the cache is not latent.
  if (IsLatent(kv) && kv.num_blocks > 0) {
    return absl::InvalidArgumentError(
        "v must be undefined for a latent cache: expected none, got a tensor");
  }
  REPRISE_RETURN_IF_ERROR(
      dims.Check("v", v, {AtLeast("num_tokens"), "num_kv_heads", "head_dim_v"}));
  REPRISE_RETURN_IF_ERROR(CheckDType("v", v, {k.scalar_type()}));
  return CheckDevice("v", v, k.device());
}

absl::StatusOr<DType> SupportedDType(const char* operation, const KvLayer& kv,
                                     const at::Tensor& k) {
  if (!k.is_cpu() && !k.is_cuda()) {
    return absl::UnimplementedError(absl::StrCat(
        operation, " on the device of k: expected cpu or cuda, got ", k.device().str()));
  }
#ifndef REPRISE_WITH_CUDA
  if (k.is_cuda()) {
    return absl::UnimplementedError(
        absl::StrCat(operation, " on the device of k: this build has no CUDA, expected cpu"));
  }
#endif
  const std::optional<DType> dtype = FromScalarType(k.scalar_type());
  const bool has_double = k.is_cpu();
  if (!dtype.has_value() || IsFp8(*dtype) || (*dtype == DType::kFloat64 && !has_double)) {
    return absl::UnimplementedError(absl::StrCat(
        operation, " with the dtype of k: expected float32, float16 or bfloat16",
        has_double ? " or float64" : "", ", got ", c10::getDtypeNames(k.scalar_type()).first));
  }
  if (kv.dtype == DType::kFloat64 && !has_double) {
    return absl::UnimplementedError(absl::StrCat(
        operation,
        " with a float64 cache on CUDA: expected float32, float16, bfloat16 or fp8, got float64"));
  }
  return *dtype;
}

KvTokens TokensOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {.data = tensor.mutable_data_ptr(),
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1),
          .dim_stride = tensor.stride(2)};
}

ConstKvTokens ConstTokensOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {.data = tensor.const_data_ptr(),
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1),
          .dim_stride = tensor.stride(2)};
}

}  // namespace reprise
