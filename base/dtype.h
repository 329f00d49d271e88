// Element types of queries, caches and weights, without LibTorch. Kernels and host logic use DType;
// base/torch_dtype.h converts it to and from LibTorch's types.

#ifndef REPRISE_BASE_DTYPE_H_
#define REPRISE_BASE_DTYPE_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string_view>

namespace reprise {

enum class DType : int8_t {
  kFloat64,  // on the CPU only, for references and tests
  kFloat32,
  kFloat16,
  kBFloat16,
  kFp8E4M3,  // the finite-only variant ("fn"); largest value 448
  kFp8E5M2,
};

// Returns the size of an element in bytes.
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

// Returns LibTorch's name: "float32", "bfloat16", "float8_e4m3fn", ...
std::string_view DTypeName(DType dtype);

// Parses LibTorch's names and common short names: "fp32", "half", "fp16", "bf16", "fp8" (e4m3),
// "fp8_e4m3", "fp8_e5m2" and similar. Returns nullopt for any other name.
std::optional<DType> ParseDType(std::string_view name);

inline std::ostream& operator<<(std::ostream& out, DType dtype) { return out << DTypeName(dtype); }

}  // namespace reprise

#endif  // REPRISE_BASE_DTYPE_H_
