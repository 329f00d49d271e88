// Unstable: any version may change this header (docs/embedding.md).
//
// A tensor as a safetensors file holds it: element type, shape, and where its bytes are. No
// LibTorch, no copy.
//
//   REPRISE_ASSIGN_OR_RETURN(TensorView tokens, file.Find("tokens_0"));
//   REPRISE_ASSIGN_OR_RETURN(std::vector<int64_t> ids, CopyElements<int64_t>(tokens));
//
// Thread safety: as any const object. A view: its provider defines how long its bytes live.

#ifndef REPRISE_HF_TENSOR_VIEW_H_
#define REPRISE_HF_TENSOR_VIEW_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/dtype.h"

namespace reprise {

// The element types of safetensors that are whole bytes; base/dtype.h has the types of the
// computation.
enum class StoredType : int8_t {
  kBool,  // one byte each
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFp8E4M3,
  kFp8E5M2,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
};

// The format's names: "F32", "BF16", "I64", "F8_E4M3", "BOOL", ...
std::string_view StoredTypeName(StoredType type);
std::optional<StoredType> ParseStoredType(std::string_view name);

// All of those names, for a message: "BOOL, I8, ...".
std::string StoredTypeNames();

// Bytes of an element: 1, 2, 4 or 8.
int SizeOf(StoredType type);

// The type to compute with; nullopt for integers and booleans.
std::optional<DType> ToDType(StoredType type);
StoredType ToStoredType(DType dtype);

inline std::ostream& operator<<(std::ostream& out, StoredType type) {
  return out << StoredTypeName(type);
}

struct TensorView {
  StoredType type = StoredType::kFloat32;
  std::vector<int64_t> shape;
  // Row-major, little-endian, num_elements() * SizeOf(type) bytes. Files may put them at any
  // address: check IsAligned() before reading them as anything wider than bytes.
  absl::Span<const char> bytes;

  int64_t num_elements() const;
  // Whether bytes.data() is a multiple of the element size.
  bool IsAligned() const;
};

// "[2, 3]".
std::string ShapeString(absl::Span<const int64_t> shape);

// Product of the sizes; 1 for a scalar. nullopt if a size is negative or the product of the nonzero
// sizes exceeds int64_t, so that no order of multiplication overflows.
std::optional<int64_t> NumElements(absl::Span<const int64_t> shape);

namespace internal {
// The type of elements T in a file; nullopt if CopyElements() does not support T.
template <typename T>
constexpr std::optional<StoredType> StoredTypeFor() {
  if (std::is_same_v<T, float>) return StoredType::kFloat32;
  if (std::is_same_v<T, double>) return StoredType::kFloat64;
  if (std::is_same_v<T, int32_t>) return StoredType::kInt32;
  if (std::is_same_v<T, int64_t>) return StoredType::kInt64;
  return std::nullopt;
}
// InvalidArgument unless `tensor` has elements of type `expected`.
absl::Status CheckType(const TensorView& tensor, StoredType expected);
}  // namespace internal

// The elements, in row-major order, whatever the alignment. T: float, double, int32_t or int64_t.
// Errors: InvalidArgument if the tensor has another type.
template <typename T>
absl::StatusOr<std::vector<T>> CopyElements(const TensorView& tensor) {
  static_assert(internal::StoredTypeFor<T>().has_value());
  if (absl::Status status = internal::CheckType(tensor, *internal::StoredTypeFor<T>());
      !status.ok()) {
    return status;
  }
  std::vector<T> elements(tensor.bytes.size() / sizeof(T));
  if (!elements.empty()) std::memcpy(elements.data(), tensor.bytes.data(), tensor.bytes.size());
  return elements;
}

}  // namespace reprise

#endif  // REPRISE_HF_TENSOR_VIEW_H_
