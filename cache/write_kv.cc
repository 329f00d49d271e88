#include "cache/write_kv.h"

#include <cmath>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"
#include "cache/kv_layout.h"
#include "cache/write_kv_cpu.h"
#include "cache/write_kv_params.h"

#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "base/cuda_status.h"
#include "cache/write_kv_kernel.h"
#endif

namespace reprise {
namespace {

absl::Status CheckScale(const char* name, const Scale& scale) {
  if (scale.data != nullptr) {
    if (scale.row_stride == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        name, " must not depend on the table row: expected row_stride 0, got ", scale.row_stride));
  }
  if (std::isfinite(scale.value) && scale.value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be positive and finite: got ", scale.value));
}

absl::Status CheckLayer(const KvLayer& kv) {
  const struct {
    const char* field;
    int value;
  } kPositive[] = {{"num_blocks", kv.num_blocks},     {"block_size", kv.block_size},
                   {"num_kv_heads", kv.num_kv_heads}, {"head_dim_qk", kv.head_dim_qk},
                   {"head_dim_v", kv.head_dim_v},     {"k.dim_chunk", kv.k.dim_chunk},
                   {"v.dim_chunk", kv.v.dim_chunk}};
  for (const auto& [field, value] : kPositive) {
    if (value >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("kv.", field, " must be positive: expected at least 1, got ", value));
  }
  if (kv.k.data == nullptr || kv.v.data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv must point to memory: got null for ", kv.k.data == nullptr ? "k" : "v"));
  }
  REPRISE_RETURN_IF_ERROR(CheckScale("kv.k_scale", kv.k_scale));
  return CheckScale("kv.v_scale", kv.v_scale);
}

// Binds num_tokens.
absl::Status CheckSlots(const at::Tensor& slot_mapping, ShapeChecker& dims) {
  if (!slot_mapping.defined() || slot_mapping.dim() != 2) {
    REPRISE_RETURN_IF_ERROR(dims.Check("slot_mapping", slot_mapping, {"num_tokens"}, at::kLong));
    return CheckLastStrideIsOne("slot_mapping", slot_mapping);
  }
  REPRISE_RETURN_IF_ERROR(
      dims.Check("slot_mapping", slot_mapping, {"num_rows", "num_columns"}, at::kLong));
  dims.Bind("num_tokens", slot_mapping.numel());
  if (slot_mapping.is_contiguous()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("slot_mapping must be contiguous: expected strides [", slot_mapping.size(1),
                   ", 1], got [", slot_mapping.stride(0), ", ", slot_mapping.stride(1), "]"));
}

absl::Status CheckTensors(const KvLayer& kv, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& slot_mapping) {
  ShapeChecker dims;
  dims.Bind("num_kv_heads", kv.num_kv_heads);
  dims.Bind("head_dim_qk", kv.head_dim_qk);
  dims.Bind("head_dim_v", kv.head_dim_v);
  REPRISE_RETURN_IF_ERROR(CheckSlots(slot_mapping, dims));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("k", k, {AtLeast("num_tokens"), "num_kv_heads", "head_dim_qk"}));
  REPRISE_RETURN_IF_ERROR(CheckDevice("slot_mapping", slot_mapping, k.device()));
  if (IsLatent(kv)) {
    if (!v.defined()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "v must be undefined for a latent cache: expected none, got a tensor");
  }
  REPRISE_RETURN_IF_ERROR(
      dims.Check("v", v, {AtLeast("num_tokens"), "num_kv_heads", "head_dim_v"}));
  REPRISE_RETURN_IF_ERROR(CheckDType("v", v, {k.scalar_type()}));
  return CheckDevice("v", v, k.device());
}

// Whether `device` can write k's dtype into the cache's.
absl::Status CheckSupported(const KvLayer& kv, const at::Tensor& k) {
  if (!k.is_cpu() && !k.is_cuda()) {
    return absl::UnimplementedError(absl::StrCat(
        "no KV write for the device of k: expected cpu or cuda, got ", k.device().str()));
  }
#ifndef REPRISE_WITH_CUDA
  if (k.is_cuda()) return absl::UnimplementedError("this build has no CUDA: expected k on cpu");
#endif
  const std::optional<DType> source = FromScalarType(k.scalar_type());
  const bool has_double = k.is_cpu();
  if (!source.has_value() || IsFp8(*source) || (*source == DType::kFloat64 && !has_double)) {
    return absl::UnimplementedError(absl::StrCat(
        "no KV write from the dtype of k: expected float32, float16 or bfloat16",
        has_double ? " or float64" : "", ", got ", c10::getDtypeNames(k.scalar_type()).first));
  }
  if (kv.dtype == DType::kFloat64 && !has_double) {
    return absl::UnimplementedError(
        "no KV write into a float64 cache on CUDA: expected float32, float16, bfloat16 or fp8");
  }
  return absl::OkStatus();
}

KvSource SourceOf(const at::Tensor& tensor) {
  return {.data = tensor.const_data_ptr(),
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1),
          .dim_stride = tensor.stride(2)};
}

#ifdef REPRISE_WITH_CUDA
absl::Status WriteKvOnCuda(const WriteKvParams& params, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  return CudaStatus(LaunchWriteKv(params, c10::cuda::getCurrentCUDAStream(device.index()).stream()),
                    "KV write");
}
#endif

}  // namespace

absl::Status WriteKv(const KvLayer& kv, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& slot_mapping) {
  REPRISE_RETURN_IF_ERROR(CheckLayer(kv));
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckTensors(kv, k, v, slot_mapping));
    REPRISE_RETURN_IF_ERROR(CheckSupported(kv, k));
    const WriteKvParams params = {.kv = kv,
                                  .k = SourceOf(k),
                                  .v = v.defined() ? SourceOf(v) : KvSource{},
                                  .source_dtype = *FromScalarType(k.scalar_type()),
                                  .slot_mapping = slot_mapping.const_data_ptr<int64_t>(),
                                  .num_tokens = slot_mapping.numel(),
                                  .num_sides = v.defined() ? 2 : 1};
    if (params.num_tokens == 0) return absl::OkStatus();
#ifdef REPRISE_WITH_CUDA
    if (k.is_cuda()) return WriteKvOnCuda(params, k.device());
#endif
    return WriteKvOnCpu(params);
  });
}

absl::Status WriteLatentKv(const KvLayer& kv, const at::Tensor& latent, const at::Tensor& rope,
                           const at::Tensor& slot_mapping) {
  if (!IsLatent(kv)) {
    return absl::InvalidArgumentError("kv must be a latent cache: expected v within k");
  }
  if (kv.k.dim_chunk < kv.head_dim_qk || kv.head_dim_v >= kv.head_dim_qk) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv must have dims behind the latent's, all in one piece: got head_dim_qk ", kv.head_dim_qk,
        ", head_dim_v ", kv.head_dim_v, ", dim_chunk ", kv.k.dim_chunk));
  }
  return CatchTorch([&]() -> absl::Status {
    ShapeChecker dims;
    REPRISE_RETURN_IF_ERROR(dims.Check("latent", latent, {"rows", kv.head_dim_v}));
    REPRISE_RETURN_IF_ERROR(
        dims.Check("rope", rope, {"rope_rows", kv.head_dim_qk - kv.head_dim_v}));
    // A layer whose K is the latent and whose V is what follows it.
    KvLayer parts = kv;
    parts.head_dim_qk = kv.head_dim_v;
    parts.head_dim_v = kv.head_dim_qk - kv.head_dim_v;
    parts.v.data = static_cast<char*>(kv.k.data) + int64_t{kv.head_dim_v} * SizeOf(kv.dtype);
    parts.k.dim_chunk = parts.head_dim_qk;
    parts.v.dim_chunk = parts.head_dim_v;
    parts.v_scale = kv.k_scale;
    return WriteKv(parts, latent.unsqueeze(1), rope.unsqueeze(1), slot_mapping);
  });
}

}  // namespace reprise
