#include "reprise/models/decoder/random_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/element_conversion.h"
#include "reprise/hf/safetensors_writer.h"
#include "reprise/hf/tensor_view.h"
#include "reprise/models/decoder/decoder_config.h"
#include "reprise/models/decoder/decoder_weights.h"

namespace reprise {
namespace {

constexpr int64_t kNumDrawn = 1 << 20;
constexpr float kDeviation = 0.02f;  // Hugging Face's initializer_range

// Elements that repeat after kNumDrawn, as many as the largest tensor and one repetition more.
std::vector<char> RandomElements(DType dtype, int64_t largest, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, kDeviation);
  std::vector<float> drawn(kNumDrawn);
  std::generate(drawn.begin(), drawn.end(), [&] { return normal(random); });
  const int64_t period = kNumDrawn * SizeOf(dtype);
  std::vector<char> bytes((largest + kNumDrawn) * SizeOf(dtype));
  ConvertElements(DType::kFloat32, drawn.data(), dtype, bytes.data(), kNumDrawn);
  for (size_t filled = period; filled < bytes.size(); filled *= 2) {
    std::memcpy(bytes.data() + filled, bytes.data(), std::min(filled, bytes.size() - filled));
  }
  return bytes;
}

// The tensors of each file.
std::vector<std::vector<TensorToWrite>> CutIntoShards(std::vector<TensorToWrite> tensors,
                                                      int64_t max_bytes) {
  std::vector<std::vector<TensorToWrite>> shards(1);
  int64_t shard_bytes = 0;
  for (TensorToWrite& tensor : tensors) {
    const int64_t bytes = static_cast<int64_t>(tensor.tensor.bytes.size());
    if (!shards.back().empty() && shard_bytes + bytes > max_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += bytes;
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

absl::Status WriteJson(const std::string& path, const nlohmann::json& json) {
  std::ofstream out(path);
  out << json.dump(2) << '\n';
  out.close();
  if (out.good()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot write ", path));
}

absl::Status WriteShards(const std::string& folder,
                         const std::vector<std::vector<TensorToWrite>>& shards) {
  if (shards.size() == 1) return WriteSafetensors(folder + "/model.safetensors", shards[0]);
  nlohmann::json index;
  int64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
    REPRISE_RETURN_IF_ERROR(WriteSafetensors(absl::StrCat(folder, "/", name), shards[i]));
    for (const TensorToWrite& tensor : shards[i]) {
      index["weight_map"][tensor.name] = name;
      total_bytes += static_cast<int64_t>(tensor.tensor.bytes.size());
    }
  }
  index["metadata"]["total_size"] = total_bytes;
  return WriteJson(folder + "/model.safetensors.index.json", index);
}

}  // namespace

absl::Status WriteRandomCheckpoint(const std::string& folder, const nlohmann::json& config,
                                   const RandomCheckpointOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const DecoderConfig parsed, ParseDecoderConfig(config));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::InternalError(absl::StrCat("cannot make ", folder, ": ", error.message()));
  }
  REPRISE_RETURN_IF_ERROR(WriteJson(folder + "/config.json", config));

  const DType dtype = parsed.dtype.value_or(DType::kBFloat16);
  const std::vector<ExpectedTensor> expected = DecoderTensors(parsed);
  int64_t largest = 0;
  for (const ExpectedTensor& tensor : expected) {
    largest = std::max(largest, *NumElements(tensor.shape));
  }
  const std::vector<char> elements = RandomElements(dtype, largest, options.seed);
  std::vector<TensorToWrite> tensors;
  int64_t begin = 0;
  for (const ExpectedTensor& tensor : expected) {
    const size_t size = *NumElements(tensor.shape) * SizeOf(dtype);
    tensors.push_back(
        {tensor.name,
         {.type = ToStoredType(dtype),
          .shape = tensor.shape,
          .bytes = absl::MakeConstSpan(elements).subspan(begin * SizeOf(dtype), size)}});
    // A prime, so that hundreds of tensors begin at as many places.
    begin = (begin + 104'729) % kNumDrawn;
  }
  return WriteShards(folder, CutIntoShards(std::move(tensors), options.max_shard_bytes));
}

}  // namespace reprise
