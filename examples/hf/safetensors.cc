#include "reprise/hf/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/strict_json.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // of the format's reference implementation
constexpr int kMaxDims = 64;                      // LibTorch's own limit (ATen's dim_bitset_size)

absl::Status CheckMetadata(const json& metadata) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(metadata, "__metadata__"));
  for (const auto& [name, value] : fields.object().items()) {
    if (!value.is_string()) return fields.Unexpected(name, "a string");
  }
  return absl::OkStatus();
}

// Adds what the metadata names as a duplicate of a tensor of the header.
void AddDuplicates(const json& metadata, TensorViews& tensors) {
  TensorViews duplicates;
  for (const auto& [name, kept] : metadata.items()) {
    const auto stored = tensors.find(kept.get_ref<const std::string&>());
    if (stored != tensors.end()) duplicates.emplace(name, stored->second);
  }
  tensors.merge(duplicates);
}

absl::StatusOr<std::vector<int64_t>> ReadShape(const JsonFields& fields) {
  REPRISE_ASSIGN_OR_RETURN(std::vector<int64_t> shape, fields.Ints("shape", {}));
  if (shape.size() > kMaxDims) {
    return fields.Unexpected("shape", absl::StrCat("at most ", kMaxDims, " dimensions"));
  }
  return shape;
}

struct Offsets {
  int64_t begin = 0;
  int64_t end = 0;
};

absl::StatusOr<Offsets> ReadOffsets(const JsonFields& fields, int64_t data_bytes) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets,
                           fields.Ints("data_offsets", {.max = data_bytes}));
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return fields.Unexpected("data_offsets", "[begin, end] with begin <= end");
  }
  return Offsets{offsets[0], offsets[1]};
}

// One tensor of the header; `data` is all that follows the header.
absl::StatusOr<TensorView> ReadTensor(const JsonFields& fields, absl::Span<const char> data) {
  REPRISE_RETURN_IF_ERROR(fields.RefuseOthers({"dtype", "shape", "data_offsets"}));
  TensorView tensor;
  REPRISE_ASSIGN_OR_RETURN(const std::string type_name, fields.String("dtype"));
  const std::optional<StoredType> type = ParseStoredType(type_name);
  if (!type) return fields.Unexpected("dtype", "one of " + StoredTypeNames());
  tensor.type = *type;
  REPRISE_ASSIGN_OR_RETURN(tensor.shape, ReadShape(fields));
  REPRISE_ASSIGN_OR_RETURN(const Offsets offsets,
                           ReadOffsets(fields, static_cast<int64_t>(data.size())));
  // Within the file, so the product below fits once the number of elements does.
  const int64_t size = offsets.end - offsets.begin;
  const std::optional<int64_t> num_elements = NumElements(tensor.shape);
  if (!num_elements || *num_elements > size / SizeOf(*type) ||
      *num_elements * SizeOf(*type) != size) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.where(), ": data_offsets: expected the bytes of ", type_name, " ",
                     ShapeString(tensor.shape), ", got ", size, " bytes"));
  }
  tensor.bytes = data.subspan(offsets.begin, size);
  return tensor;
}

// Rule 5: in the order of their offsets, each tensor begins where the one before it ended.
absl::Status CheckCoverage(const TensorViews& tensors, absl::Span<const char> data) {
  std::vector<TensorViews::const_iterator> order;
  for (auto it = tensors.begin(); it != tensors.end(); ++it) order.push_back(it);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    const auto ends = [](const TensorView& t) { return std::pair(t.bytes.begin(), t.bytes.end()); };
    return ends(a->second) < ends(b->second);
  });
  const char* covered = data.begin();
  for (const auto& it : order) {
    const absl::Span<const char> bytes = it->second.bytes;
    if (bytes.begin() != covered) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", DescribeJson(it->first), ": data_offsets: expected to begin at ",
                       covered - data.begin(), ", the end of the tensor before it, got ",
                       bytes.begin() - data.begin()));
    }
    covered = bytes.end();
  }
  if (covered != data.end()) {
    return absl::InvalidArgumentError(absl::StrCat("data: expected ", covered - data.begin(),
                                                   " bytes for all tensors together, got ",
                                                   data.size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TensorViews> ParseSafetensors(absl::Span<const char> bytes) {
  const int64_t file_bytes = static_cast<int64_t>(bytes.size());
  if (file_bytes < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("file: expected at least ", kLengthBytes, " bytes, got ", file_bytes));
  }
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  const int64_t max_header_bytes = std::min(kMaxHeaderBytes, file_bytes - kLengthBytes);
  if (header_bytes > static_cast<uint64_t>(max_header_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("header length: expected at most ", max_header_bytes, ", got ", header_bytes));
  }
  const std::string_view text(bytes.data() + kLengthBytes, header_bytes);
  const absl::Span<const char> data = bytes.subspan(kLengthBytes + header_bytes);
  if (text.empty() || text[0] != '{') {
    return absl::InvalidArgumentError("header: expected an object that begins with '{'");
  }
  absl::StatusOr<json> header = ParseJson(text);
  if (!header.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("header: ", header.status().message()));
  }

  TensorViews tensors;
  for (const auto& [name, value] : header->items()) {
    if (name == "__metadata__") {
      REPRISE_RETURN_IF_ERROR(CheckMetadata(value));
      continue;
    }
    REPRISE_ASSIGN_OR_RETURN(const JsonFields fields,
                             JsonFields::Of(value, absl::StrCat("tensor ", DescribeJson(name))));
    REPRISE_ASSIGN_OR_RETURN(TensorView tensor, ReadTensor(fields, data));
    tensors.emplace(name, std::move(tensor));
  }
  REPRISE_RETURN_IF_ERROR(CheckCoverage(tensors, data));
  const auto metadata = header->find("__metadata__");
  if (metadata != header->end()) AddDuplicates(*metadata, tensors);
  return tensors;
}

SafetensorsFile::SafetensorsFile(MappedFile file, TensorViews tensors)
    : file_(std::move(file)), tensors_(std::move(tensors)) {}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  REPRISE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  absl::StatusOr<TensorViews> tensors = ParseSafetensors(file.bytes());
  if (!tensors.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", tensors.status().message()));
  }
  return SafetensorsFile(std::move(file), *std::move(tensors));
}

absl::StatusOr<TensorView> SafetensorsFile::Find(std::string_view name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(path(), ": no tensor ", DescribeJson(json(name))));
  }
  return it->second;
}

}  // namespace reprise
