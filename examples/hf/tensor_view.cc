#include "reprise/hf/tensor_view.h"

#include <glog/logging.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace reprise {
namespace {

struct TypeRow {
  StoredType type;
  const char* name;
  int size;
  std::optional<DType> dtype;
};

constexpr std::array kTypes = {
    TypeRow{StoredType::kBool, "BOOL", 1, std::nullopt},
    TypeRow{StoredType::kInt8, "I8", 1, std::nullopt},
    TypeRow{StoredType::kInt16, "I16", 2, std::nullopt},
    TypeRow{StoredType::kInt32, "I32", 4, std::nullopt},
    TypeRow{StoredType::kInt64, "I64", 8, std::nullopt},
    TypeRow{StoredType::kUint8, "U8", 1, std::nullopt},
    TypeRow{StoredType::kUint16, "U16", 2, std::nullopt},
    TypeRow{StoredType::kUint32, "U32", 4, std::nullopt},
    TypeRow{StoredType::kUint64, "U64", 8, std::nullopt},
    TypeRow{StoredType::kFp8E4M3, "F8_E4M3", 1, DType::kFp8E4M3},
    TypeRow{StoredType::kFp8E5M2, "F8_E5M2", 1, DType::kFp8E5M2},
    TypeRow{StoredType::kFloat16, "F16", 2, DType::kFloat16},
    TypeRow{StoredType::kBFloat16, "BF16", 2, DType::kBFloat16},
    TypeRow{StoredType::kFloat32, "F32", 4, DType::kFloat32},
    TypeRow{StoredType::kFloat64, "F64", 8, DType::kFloat64},
};

const TypeRow& RowOf(StoredType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row;
  }
  LOG(FATAL) << "no StoredType: " << static_cast<int>(type);
}

}  // namespace

std::string_view StoredTypeName(StoredType type) { return RowOf(type).name; }

std::optional<StoredType> ParseStoredType(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

std::string StoredTypeNames() {
  return absl::StrJoin(
      kTypes, ", ", [](std::string* out, const TypeRow& row) { absl::StrAppend(out, row.name); });
}

int SizeOf(StoredType type) { return RowOf(type).size; }

std::optional<DType> ToDType(StoredType type) { return RowOf(type).dtype; }

StoredType ToStoredType(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row.type;
  }
  LOG(FATAL) << "no DType: " << static_cast<int>(dtype);
}

int64_t TensorView::num_elements() const {
  return static_cast<int64_t>(bytes.size()) / SizeOf(type);
}

bool TensorView::IsAligned() const {
  return reinterpret_cast<uintptr_t>(bytes.data()) % SizeOf(type) == 0;
}

std::string ShapeString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::optional<int64_t> NumElements(absl::Span<const int64_t> shape) {
  int64_t product = 1;
  bool is_empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(product, size, &product)) {
      return std::nullopt;
    }
  }
  return is_empty ? 0 : product;
}

absl::Status internal::CheckType(const TensorView& tensor, StoredType expected) {
  if (tensor.type == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("element type: expected ", RowOf(expected).name,
                                                 ", got ", RowOf(tensor.type).name));
}

}  // namespace reprise
