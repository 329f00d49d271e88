#include "reprise/base/dtype.h"

namespace reprise {
namespace {

struct Name {
  std::string_view name;
  DType dtype;
};

// The first name of each type is the name that is printed.
constexpr Name kNames[] = {
    {"float64", DType::kFloat64},     {"fp64", DType::kFloat64},
    {"double", DType::kFloat64},      {"float32", DType::kFloat32},
    {"fp32", DType::kFloat32},        {"float", DType::kFloat32},
    {"float16", DType::kFloat16},     {"fp16", DType::kFloat16},
    {"half", DType::kFloat16},        {"bfloat16", DType::kBFloat16},
    {"bf16", DType::kBFloat16},       {"float8_e4m3fn", DType::kFp8E4M3},
    {"fp8", DType::kFp8E4M3},         {"fp8_e4m3", DType::kFp8E4M3},
    {"float8_e4m3", DType::kFp8E4M3}, {"float8_e5m2", DType::kFp8E5M2},
    {"fp8_e5m2", DType::kFp8E5M2},
};

}  // namespace

std::string_view DTypeName(DType dtype) {
  for (const Name& entry : kNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "unknown";
}

std::optional<DType> ParseDType(std::string_view name) {
  for (const Name& entry : kNames) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace reprise
