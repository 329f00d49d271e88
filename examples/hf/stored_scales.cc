#include "reprise/hf/stored_scales.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/hf/element_conversion.h"
#include "reprise/hf/tensor_copies.h"
#include "reprise/hf/tensor_view.h"

namespace reprise {
namespace {

constexpr int64_t kBlock = 128;

int64_t Blocks(int64_t size) { return (size + kBlock - 1) / kBlock; }

// The scale of a value is values[row / rows_of_scale * num_groups + column / 128].
struct StoredScales {
  std::vector<float> values;
  int64_t rows_of_scale = 1;
  int64_t num_groups = 1;
};

// Without the values. Errors: as CheckScales().
absl::StatusOr<std::pair<const TensorView*, StoredScales>> FindScales(
    const TensorViews& tensors, const std::string& weight, const std::vector<int64_t>& shape) {
  const TensorView* found = nullptr;
  for (const char* suffix : {"_scale", "_scale_inv"}) {
    const auto scales = tensors.find(absl::StrCat(weight, suffix));
    if (scales != tensors.end()) found = &scales->second;
  }
  if (found == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(weight, " is of 8 bits and must have scales: expected ", weight, "_scale or ",
                     weight, "_scale_inv, got neither"));
  }
  const std::optional<DType> dtype = ToDType(found->type);
  StoredScales scales;
  const std::vector<int64_t> blocks = {Blocks(shape[0]), Blocks(shape[1])};
  if (found->num_elements() == 1) {
    scales.rows_of_scale = shape[0];
  } else if (found->shape == blocks) {
    scales.rows_of_scale = kBlock;
    scales.num_groups = blocks[1];
  } else if (found->num_elements() != shape[0] || found->shape.empty() ||
             found->shape[0] != shape[0]) {
    return absl::InvalidArgumentError(absl::StrCat("the scales of ", weight, " must be [1], [",
                                                   shape[0], ", 1] or ", ShapeString(blocks),
                                                   ", got ", ShapeString(found->shape)));
  }
  if (!dtype.has_value() || IsFp8(*dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("the scales of ", weight,
                                                   " must be of 16, 32 or 64 bit floats, got ",
                                                   std::string(StoredTypeName(found->type))));
  }
  return std::pair(found, std::move(scales));
}

// REQUIRES: a floating type.
std::vector<float> FloatsOf(const TensorView& view) {
  // The file's bytes may have any address.
  const int64_t count = view.num_elements();
  std::vector<double> aligned((view.bytes.size() + sizeof(double) - 1) / sizeof(double));
  std::memcpy(aligned.data(), view.bytes.data(), view.bytes.size());
  std::vector<float> values(count);
  ConvertElements(*ToDType(view.type), aligned.data(), DType::kFloat32, values.data(), count);
  return values;
}

absl::StatusOr<StoredScales> LoadScales(const TensorViews& tensors, const ScaledRows& part) {
  std::vector<int64_t> stored = part.shape;
  if (part.num_stored_rows > 0) stored[0] = part.num_stored_rows;
  REPRISE_ASSIGN_OR_RETURN(auto found, FindScales(tensors, part.name, stored));
  auto& [view, scales] = found;
  scales.values = FloatsOf(*view);
  return StoredScales(std::move(scales));
}

constexpr std::string_view kAttention = "self_attn.";

// Names of a scale of K (`letter` 'k') or V behind kAttention, in order of preference.
std::vector<std::string> KvScaleNames(char letter) {
  const std::string one(1, letter);
  return {one + "_scale", "attn." + one + "_scale", one + "_proj." + one + "_scale",
          one + "_proj.output_scale", "kv_scale"};
}

absl::StatusOr<std::optional<float>> ReadKvScale(const TensorViews& tensors,
                                                 const std::string& layer, char letter) {
  for (const std::string& name : KvScaleNames(letter)) {
    const auto found = tensors.find(absl::StrCat(layer, std::string(kAttention), name));
    if (found == tensors.end()) continue;
    const std::optional<DType> dtype = ToDType(found->second.type);
    if (found->second.num_elements() != 1 || !dtype.has_value() || IsFp8(*dtype)) {
      return absl::InvalidArgumentError(absl::StrCat(
          found->first, " must be one scale, a 16, 32 or 64 bit float, got ",
          std::string(StoredTypeName(found->second.type)), " ", ShapeString(found->second.shape)));
    }
    return std::optional<float>(FloatsOf(found->second)[0]);
  }
  return std::optional<float>();
}

// The stored rows that become the rows of a part, in their order.
std::vector<int64_t> StoredRows(const ScaledRows& part) {
  const int64_t period = part.period > 0 ? part.period : part.shape[0];
  const Share share = part.rows.value_or(Share{0, period});
  std::vector<int64_t> rows;
  for (int64_t first = 0; first < part.shape[0]; first += period) {
    const size_t begin = rows.size();
    rows.resize(begin + share.size);
    for (int64_t row = 0; row < share.size; ++row) {
      const int64_t target = part.unzipped_head.has_value()
                                 ? UnzippedRow(row, *part.unzipped_head, part.kept_rows)
                                 : row;
      rows[begin + target] = part.first_row + first + share.begin + row;
    }
  }
  return rows;
}

}  // namespace

std::vector<std::string> NamesBesideScaled(const std::string& weight) {
  std::vector<std::string> names = {weight + "_scale", weight + "_scale_inv"};
  constexpr std::string_view kWeight = "weight";
  if (weight.ends_with(kWeight)) {
    names.push_back(weight.substr(0, weight.size() - kWeight.size()) + "input_scale");
  }
  return names;
}

absl::Status CheckScales(const TensorViews& tensors, const std::string& weight) {
  const auto found = tensors.find(weight);
  if (found == tensors.end() || found->second.shape.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(weight, " is of 8 bits and must have two dimensions"));
  }
  return FindScales(tensors, weight, found->second.shape).status();
}

absl::StatusOr<at::Tensor> ReadScales(const TensorViews& tensors,
                                      absl::Span<const ScaledRows> parts,
                                      const std::optional<Share>& columns) {
  const Share read = columns.value_or(Share{0, parts[0].shape[1]});
  int64_t num_rows = 0, num_groups = 1;
  std::vector<std::pair<std::vector<int64_t>, StoredScales>> loaded;
  for (const ScaledRows& part : parts) {
    REPRISE_ASSIGN_OR_RETURN(StoredScales scales, LoadScales(tensors, part));
    if (scales.num_groups > 1) {
      if (read.begin % kBlock != 0) {
        return absl::UnimplementedError(
            absl::StrCat("a rank's columns of ", part.name, " must begin with a block of ", kBlock,
                         ", as it has a scale for each: got ", read.begin));
      }
      num_groups = Blocks(read.size);
    }
    loaded.emplace_back(StoredRows(part), std::move(scales));
    num_rows += static_cast<int64_t>(loaded.back().first.size());
  }
  at::Tensor result = at::empty({num_rows, num_groups}, at::kFloat);
  float* out = result.mutable_data_ptr<float>();
  for (const auto& [rows, scales] : loaded) {
    for (const int64_t row : rows) {
      const float* const of_row =
          scales.values.data() + row / scales.rows_of_scale * scales.num_groups;
      for (int64_t group = 0; group < num_groups; ++group) {
        *out++ = scales.num_groups > 1 ? of_row[read.begin / kBlock + group] : of_row[0];
      }
    }
  }
  return result;
}

bool IsAttentionScale(std::string_view name) {
  const size_t begin = name.rfind(kAttention);
  if (begin == std::string_view::npos) return false;
  const std::string_view last = name.substr(begin + kAttention.size());
  for (const char letter : {'k', 'v', 'q'}) {
    for (const std::string& known : KvScaleNames(letter)) {
      if (last == known) return true;
    }
  }
  return last == "prob_scale" || last == "attn.prob_scale";
}

absl::StatusOr<StoredKvScales> ReadKvScales(const TensorViews& tensors, const std::string& layer) {
  StoredKvScales scales;
  REPRISE_ASSIGN_OR_RETURN(scales.k, ReadKvScale(tensors, layer, 'k'));
  REPRISE_ASSIGN_OR_RETURN(scales.v, ReadKvScale(tensors, layer, 'v'));
  return scales;
}

}  // namespace reprise
