#include "reprise/hf/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/strict_json.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr char kSingleName[] = "model.safetensors";
constexpr char kIndexName[] = "model.safetensors.index.json";

// Whether the name is a plain file name in the same folder: an index comes with untrusted weights
// and must not make this program open anything else.
bool IsPlainFileName(const std::string& name) {
  const auto is_bad = [](char c) { return c == '/' || c == '\\' || c == '\0'; };
  return absl::EndsWith(name, ".safetensors") && name[0] != '.' &&
         std::none_of(name.begin(), name.end(), is_bad);
}

// The tensors that each file must hold.
using TensorsByFile = std::map<std::string, std::vector<std::string>>;

absl::StatusOr<TensorsByFile> ReadIndex(const std::string& path) {
  REPRISE_ASSIGN_OR_RETURN(const json index, ReadJsonFile(path));
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(index, path));
  REPRISE_ASSIGN_OR_RETURN(const JsonFields weight_map, fields.Object("weight_map"));
  TensorsByFile tensors;
  for (const auto& [tensor, file] : weight_map.object().items()) {
    if (!file.is_string() || !IsPlainFileName(file.get<std::string>())) {
      return absl::InvalidArgumentError(
          absl::StrCat(weight_map.where(), ": ", DescribeJson(tensor),
                       ": expected the name of a .safetensors file in the same folder, got ",
                       DescribeJson(file)));
    }
    tensors[file.get<std::string>()].push_back(tensor);
  }
  return tensors;
}

bool AllExist(const std::string& folder, const TensorsByFile& index) {
  std::error_code ignored;
  return std::all_of(index.begin(), index.end(), [&](const auto& file) {
    return std::filesystem::exists(absl::StrCat(folder, "/", file.first), ignored);
  });
}

// Adds the tensors of `file` that have the bytes of one of its tensors with these names.
void AddDuplicates(const SafetensorsFile& file, const std::vector<std::string>& names,
                   TensorViews& tensors) {
  std::set<const char*> stored;
  for (const std::string& name : names) {
    const TensorView& tensor = tensors.at(name);
    if (!tensor.bytes.empty()) stored.insert(tensor.bytes.data());
  }
  for (const auto& [name, tensor] : file.tensors()) {
    const bool is_duplicate = !tensor.bytes.empty() && stored.contains(tensor.bytes.data());
    if (is_duplicate) tensors.emplace(name, tensor);
  }
}

}  // namespace

Checkpoint::Checkpoint(std::string folder, std::vector<SafetensorsFile> files, TensorViews tensors)
    : folder_(std::move(folder)), files_(std::move(files)), tensors_(std::move(tensors)) {}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& folder) {
  std::vector<SafetensorsFile> files;
  const std::string single_path = absl::StrCat(folder, "/", kSingleName);
  const absl::StatusOr<TensorsByFile> index = ReadIndex(absl::StrCat(folder, "/", kIndexName));
  const bool has_whole_index = index.ok() && !index->empty() && AllExist(folder, *index);
  std::error_code ignored;
  if (!has_whole_index && std::filesystem::exists(single_path, ignored)) {
    REPRISE_ASSIGN_OR_RETURN(SafetensorsFile single, SafetensorsFile::Open(single_path));
    TensorViews tensors = single.tensors();
    files.push_back(std::move(single));
    return Checkpoint(folder, std::move(files), std::move(tensors));
  }
  if (absl::IsNotFound(index.status())) {
    return absl::NotFoundError(
        absl::StrCat(folder, ": expected a folder with ", kSingleName, " or ", kIndexName));
  }
  REPRISE_RETURN_IF_ERROR(index.status());
  TensorViews tensors;
  for (const auto& [file_name, tensor_names] : *index) {
    REPRISE_ASSIGN_OR_RETURN(SafetensorsFile file,
                             SafetensorsFile::Open(absl::StrCat(folder, "/", file_name)));
    for (const std::string& name : tensor_names) {
      const absl::StatusOr<TensorView> tensor = file.Find(name);
      if (!tensor.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(tensor.status().message(), ", where ", kIndexName, " says it is"));
      }
      tensors.emplace(name, *tensor);
    }
    AddDuplicates(file, tensor_names, tensors);
    files.push_back(std::move(file));
  }
  return Checkpoint(folder, std::move(files), std::move(tensors));
}

absl::StatusOr<TensorView> Checkpoint::Find(std::string_view name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(folder_, ": no tensor ", DescribeJson(json(name))));
  }
  return it->second;
}

absl::Status Checkpoint::Read(const TensorView& tensor, int64_t begin, absl::Span<char> out) const {
  const char* const data = tensor.bytes.data() + begin;
  for (const SafetensorsFile& file : files_) {
    const absl::Span<const char> bytes = file.file().bytes();
    if (data < bytes.data() || data + out.size() > bytes.data() + bytes.size()) continue;
    return file.file().Read(data - bytes.data(), out);
  }
  LOG(FATAL) << "not a tensor of " << folder_;
}

}  // namespace reprise
