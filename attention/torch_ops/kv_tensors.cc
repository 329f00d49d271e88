#include "reprise/attention/torch_ops/kv_tensors.h"

#include <ATen/ops/item.h>

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/dtype.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/cache/storage/kv_layout.h"

namespace reprise {
namespace {

absl::StatusOr<DType> CacheDType(const KvTensors& tensors) {
  const at::ScalarType type = tensors.k_cache.scalar_type();
  if (tensors.kv_dtype && *tensors.kv_dtype != "auto") {
    const std::optional<DType> dtype = ParseDType(*tensors.kv_dtype);
    if (!dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          "kv_dtype must name an element type: expected auto, float32, float16, bfloat16, "
          "fp8_e4m3 or fp8_e5m2, got ",
          *tensors.kv_dtype));
    }
    const bool is_storage = type == at::kByte && IsFp8(*dtype);
    if (!is_storage && FromScalarType(type) != *dtype) {
      return absl::InvalidArgumentError(absl::StrCat("k_cache must have dtype kv_dtype: expected ",
                                                     std::string(DTypeName(*dtype)), ", got ",
                                                     c10::toString(type)));
    }
    return *dtype;
  }
  const std::optional<DType> dtype = FromScalarType(type);
  if (dtype) return *dtype;
  return absl::InvalidArgumentError(
      absl::StrCat("k_cache has the wrong dtype: expected a floating-point type, or uint8 with "
                   "kv_dtype, got ",
                   c10::toString(type)));
}

// Transposes HND tensors to the dimension order of KvLayout.
absl::StatusOr<KvForm> PutInOrder(const std::string& layout, at::Tensor& k, at::Tensor& v) {
  if (layout == "K-packed") return KvForm::kKPacked;
  REPRISE_ASSIGN_OR_RETURN(const KvOrder order, ParseKvOrder(layout));
  if (order == KvOrder::kHND && k.dim() == 4 && v.dim() == 4) {
    k = k.transpose(1, 2);
    v = v.transpose(1, 2);
  }
  return KvForm::kPair;
}

absl::Status CheckShapes(const KvTensors& tensors, KvForm form) {
  ShapeChecker dims;
  const at::Tensor& k = tensors.k_cache;
  const at::Tensor& v = tensors.v_cache;
  if (form == KvForm::kKPacked) {
    REPRISE_RETURN_IF_ERROR(
        dims.Check("k_cache", k, {"num_blocks", "num_kv_heads", "k_chunks", "block_size", "x"}));
    REPRISE_RETURN_IF_ERROR(
        dims.Check("v_cache", v, {"num_blocks", "num_kv_heads", "head_dim_v", "block_size"}));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("k_cache", k));
  } else if (tensors.layout == "HND") {
    REPRISE_RETURN_IF_ERROR(
        dims.Check("k_cache", k, {"num_blocks", "num_kv_heads", "block_size", "head_dim_qk"}));
    REPRISE_RETURN_IF_ERROR(
        dims.Check("v_cache", v, {"num_blocks", "num_kv_heads", "block_size", "head_dim_v"}));
  } else {
    REPRISE_RETURN_IF_ERROR(
        dims.Check("k_cache", k, {"num_blocks", "block_size", "num_kv_heads", "head_dim_qk"}));
    REPRISE_RETURN_IF_ERROR(
        dims.Check("v_cache", v, {"num_blocks", "block_size", "num_kv_heads", "head_dim_v"}));
  }
  if (form != KvForm::kKPacked) {
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("k_cache", k));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("v_cache", v));
  }
  if (v.scalar_type() != k.scalar_type()) {
    REPRISE_RETURN_IF_ERROR(CheckDType("v_cache", v, {k.scalar_type()}));
  }
  return CheckDevice("v_cache", v, k.device());
}

// Adds the rope part to a layer whose head_dim_qk does not include the rope part yet.
absl::Status AddRope(const KvTensors& tensors, KvLayer& layer) {
  at::Tensor rope = *tensors.rope_cache;
  REPRISE_RETURN_IF_ERROR(CheckDevice("rope_cache", rope, tensors.k_cache.device()));
  if (tensors.layout == "K-packed") {
    return absl::InvalidArgumentError(
        "rope_cache: expected none with layout K-packed, got a tensor");
  }
  ShapeChecker dims;
  dims.Bind("num_blocks", layer.num_blocks);
  dims.Bind("block_size", layer.block_size);
  dims.Bind("num_kv_heads", layer.num_kv_heads);
  if (tensors.layout == "HND") {
    REPRISE_RETURN_IF_ERROR(
        dims.Check("rope_cache", rope, {"num_blocks", "num_kv_heads", "block_size", AtLeast(1)}));
    rope = rope.transpose(1, 2);
  } else {
    REPRISE_RETURN_IF_ERROR(
        dims.Check("rope_cache", rope, {"num_blocks", "block_size", "num_kv_heads", AtLeast(1)}));
  }
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("rope_cache", rope));
  const bool is_storage = rope.scalar_type() == at::kByte && IsFp8(layer.dtype);
  const std::optional<DType> dtype = is_storage ? layer.dtype : FromScalarType(rope.scalar_type());
  if (!dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope_cache has the wrong dtype: expected a floating-point type, or uint8 "
                     "with fp8 keys, got ",
                     c10::toString(rope.scalar_type())));
  }
  layer.rope_dim = static_cast<int>(rope.size(3));
  layer.rope_dtype = *dtype;
  layer.rope = {.data = const_cast<void*>(rope.const_data_ptr()),
                .block_stride = rope.stride(0),
                .token_stride = rope.stride(1),
                .head_stride = rope.stride(2),
                .dim_chunk = layer.rope_dim};
  layer.head_dim_qk += layer.rope_dim;
  REPRISE_ASSIGN_OR_RETURN(layer.rope_scale, ScaleOf("rope_cache_scale", tensors.rope_cache_scale,
                                                     layer.num_kv_heads, rope.device()));
  return absl::OkStatus();
}

}  // namespace

at::Tensor Fp8Of(const at::Tensor& tensor, const std::optional<std::string>& kv_dtype) {
  if (tensor.scalar_type() != at::kByte || !kv_dtype) return tensor;
  const std::optional<DType> dtype = ParseDType(*kv_dtype);
  return dtype && IsFp8(*dtype) ? tensor.view(ToScalarType(*dtype)) : tensor;
}

absl::StatusOr<Scale> ScaleOf(const char* argument, const std::optional<at::Tensor>& scale,
                              int num_kv_heads, at::Device device) {
  if (!scale) return Scale{};
  REPRISE_RETURN_IF_ERROR(CheckDType(argument, *scale, {at::kFloat}));
  if (scale->numel() == 1 && scale->is_cpu()) return Scale{.value = scale->item<float>()};
  REPRISE_RETURN_IF_ERROR(CheckDevice(argument, *scale, device));
  Scale result = {.data = scale->const_data_ptr<float>()};
  if (scale->numel() == 1) return result;
  ShapeChecker dims;
  dims.Bind("num_kv_heads", num_kv_heads);
  if (scale->dim() == 1) {
    REPRISE_RETURN_IF_ERROR(dims.Check(argument, *scale, {"num_kv_heads"}));
    result.head_stride = scale->stride(0);
    return result;
  }
  REPRISE_RETURN_IF_ERROR(dims.Check(argument, *scale, {"num_tables", "num_kv_heads"}));
  result.row_stride = scale->stride(0);
  result.head_stride = scale->stride(1);
  return result;
}

absl::StatusOr<KvLayer> KvLayerOf(const KvTensors& tensors) {
  at::Tensor k = tensors.k_cache;
  at::Tensor v = tensors.v_cache;
  REPRISE_ASSIGN_OR_RETURN(const KvForm form, PutInOrder(tensors.layout, k, v));
  REPRISE_RETURN_IF_ERROR(CheckShapes(tensors, form));
  REPRISE_ASSIGN_OR_RETURN(const DType dtype, CacheDType(tensors));
  const bool is_k_packed = form == KvForm::kKPacked;
  // Checks the sizes as a cache of form kPair. Uses at least one block, because the tensors may
  // have no blocks. The tensor sets x of a K-packed cache.
  REPRISE_ASSIGN_OR_RETURN(
      const KvLayout layout,
      KvLayout::Create(
          {.num_blocks = static_cast<int>(std::max<int64_t>(k.size(0), 1)),
           .block_size = static_cast<int>(k.size(is_k_packed ? 3 : 1)),
           .num_kv_heads = static_cast<int>(k.size(is_k_packed ? 1 : 2)),
           .head_dim_qk = static_cast<int>(is_k_packed ? k.size(2) * k.size(4) : k.size(3)),
           .head_dim_v = static_cast<int>(v.size(is_k_packed ? 2 : 3)),
           .dtype = dtype,
           .form = KvForm::kPair}));
  // Strides in the order block, token, head, dim.
  using Dims = std::array<int, 4>;
  constexpr Dims kInOrder = {0, 1, 2, 3};
  const auto strides = [](const at::Tensor& t, const Dims& dims) {
    return std::array<int64_t, 4>{t.stride(dims[0]), t.stride(dims[1]), t.stride(dims[2]),
                                  t.stride(dims[3])};
  };
  const std::array<int64_t, 4> k_strides = strides(k, is_k_packed ? Dims{0, 3, 1, 4} : kInOrder);
  const std::array<int64_t, 4> v_strides = strides(v, is_k_packed ? Dims{0, 3, 1, 2} : kInOrder);
  const KvTensorRef refs[] = {{const_cast<void*>(k.const_data_ptr()), k_strides},
                              {const_cast<void*>(v.const_data_ptr()), v_strides}};
  KvLayer layer = layout.MakeKvLayer(refs);
  layer.num_blocks = static_cast<int>(k.size(0));
  if (is_k_packed) {
    layer.k.dim_chunk = static_cast<int>(k.size(4));
    layer.k.dim_chunk_stride = k.stride(2);
  }
  REPRISE_ASSIGN_OR_RETURN(layer.k_scale,
                           ScaleOf("k_scale", tensors.k_scale, layer.num_kv_heads, k.device()));
  REPRISE_ASSIGN_OR_RETURN(layer.v_scale,
                           ScaleOf("v_scale", tensors.v_scale, layer.num_kv_heads, k.device()));
  if (tensors.rope_cache) {
    REPRISE_RETURN_IF_ERROR(AddRope(tensors, layer));
  } else if (tensors.rope_cache_scale) {
    return absl::InvalidArgumentError(
        "rope_cache_scale: expected none without rope_cache, got one");
  }
  return layer;
}

}  // namespace reprise
