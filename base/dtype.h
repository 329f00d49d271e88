// Element types of queries, caches and weights, without LibTorch: kernels and host logic use DType,
// and base/torch_dtype.h converts to LibTorch's types.

#ifndef REPRISE_BASE_DTYPE_H_
#define REPRISE_BASE_DTYPE_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string_view>

namespace reprise {

enum class DType : int8_t {
  kFloat64,  // references only
  kFloat32,
  kFloat16,
  kBFloat16,
  kFp8E4M3,  // the finite-only variant, "fn": largest value 448
  kFp8E5M2,
};

// Bytes of an element: 8, 4, 2, 2, 1, 1.
constexpr int SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 8;
    case DType::kFloat32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFp8E4M3:
    case DType::kFp8E5M2:
      return 1;
  }
  return 0;
}

constexpr bool IsFp8(DType dtype) { return dtype == DType::kFp8E4M3 || dtype == DType::kFp8E5M2; }

// "float32", "bfloat16", "float8_e4m3fn", ...: LibTorch's names.
std::string_view DTypeName(DType dtype);

// Accepts LibTorch's names and the common short ones: "fp32", "half", "fp16", "bf16", "fp8" (=
// e4m3), "fp8_e4m3", "fp8_e5m2", and similar. nullopt for any other name.
std::optional<DType> ParseDType(std::string_view name);

inline std::ostream& operator<<(std::ostream& out, DType dtype) { return out << DTypeName(dtype); }

}  // namespace reprise

#endif  // REPRISE_BASE_DTYPE_H_
