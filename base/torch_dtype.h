// Conversion between DType and LibTorch's types: the boundary between torch-free code and tensors.
//
//   at::Tensor k = at::empty(shape, at::TensorOptions().dtype(ToScalarType(DType::kBFloat16)));
//   std::optional<DType> dtype = FromScalarType(k.scalar_type());

#ifndef REPRISE_BASE_TORCH_DTYPE_H_
#define REPRISE_BASE_TORCH_DTYPE_H_

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <optional>

#include "reprise/base/dtype.h"

namespace reprise {

// LibTorch's element types, for dispatch by DType (cache/ops/kv_tokens.h).
struct TorchElements {
  using Float64 = double;
  using Float16 = c10::Half;
  using BFloat16 = c10::BFloat16;
  using Fp8E4M3 = c10::Float8_e4m3fn;
  using Fp8E5M2 = c10::Float8_e5m2;
};

constexpr at::ScalarType ToScalarType(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return at::ScalarType::Double;
    case DType::kFloat32:
      return at::ScalarType::Float;
    case DType::kFloat16:
      return at::ScalarType::Half;
    case DType::kBFloat16:
      return at::ScalarType::BFloat16;
    case DType::kFp8E4M3:
      return at::ScalarType::Float8_e4m3fn;
    case DType::kFp8E5M2:
      return at::ScalarType::Float8_e5m2;
  }
  return at::ScalarType::Undefined;
}

// Returns nullopt for types that caches, queries and weights do not use, such as integers.
constexpr std::optional<DType> FromScalarType(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Double:
      return DType::kFloat64;
    case at::ScalarType::Float:
      return DType::kFloat32;
    case at::ScalarType::Half:
      return DType::kFloat16;
    case at::ScalarType::BFloat16:
      return DType::kBFloat16;
    case at::ScalarType::Float8_e4m3fn:
      return DType::kFp8E4M3;
    case at::ScalarType::Float8_e5m2:
      return DType::kFp8E5M2;
    default:
      return std::nullopt;
  }
}

}  // namespace reprise

#endif  // REPRISE_BASE_TORCH_DTYPE_H_
