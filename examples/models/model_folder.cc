#include "reprise/models/model_folder.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/share.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/paths.h"
#include "reprise/hf/strict_json.h"
#include "reprise/models/bart/bart_model.h"
#include "reprise/models/bart/bart_weights.h"
#include "reprise/models/decoder/decoder_families.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/devices.h"
#include "reprise/models/gpt/gpt_model.h"
#include "reprise/models/gpt/gpt_weights.h"
#include "reprise/runner/ranks/replicated_model.h"

namespace reprise {
namespace {

std::vector<ExpectedTensor> TensorsOf(const DecoderConfig& config) {
  return DecoderTensors(config);
}
std::vector<ExpectedTensor> TensorsOf(const BartConfig& config) { return BartTensors(config); }
std::vector<ExpectedTensor> TensorsOf(const GptConfig& config) { return GptTensors(config); }

// Of a family whose models do not attend over ranks.
absl::Status CheckNoContext(const char* family, const LoadModelOptions& options) {
  const int world = RanksOf(options.context).world;
  if (world == 1) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "models of ", family, " do not divide keys: expected a context of one rank, got ", world));
}

absl::Status CheckWeightOptions(const LoadWeightsOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckDevice(options.device));
  const DType dtype = options.dtype.value_or(DType::kFloat32);
  if (dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("dtype must be float32, float16 or bfloat16: got ",
                                                 std::string(DTypeName(dtype))));
}

// Why the family or the sizes of a model cannot be divided, or OK.
absl::Status CheckCanBeSharded(const DecoderConfig& config, const LoadModelOptions& options) {
  return DecoderConfigOfRank(config, options.weights.ranks).status();
}
absl::Status CheckCanBeSharded(const GptConfig& config, const LoadModelOptions& options) {
  return GptShareOf(config, options.weights.ranks).status();
}
absl::Status CheckCanBeSharded(const BartConfig& config, const LoadModelOptions& options) {
  return BartShareOf(config, options.weights.ranks).status();
}

absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& path, const DecoderConfig& config,
                                            const LoadModelOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(DecoderWeights weights,
                           LoadDecoderWeights(path, config, options.weights));
  return DecoderModel::Create(config, std::move(weights),
                              {.max_position = options.max_position,
                               .collectives = options.collectives,
                               .context = options.context,
                               .mla_cache = options.mla_cache});
}

absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& path, const BartConfig& config,
                                            const LoadModelOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckNoContext("BART", options));
  REPRISE_ASSIGN_OR_RETURN(BartWeights weights, LoadBartWeights(path, config, options.weights));
  return BartModel::Create(config, std::move(weights), {.collectives = options.collectives});
}

absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& path, const GptConfig& config,
                                            const LoadModelOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(GptWeights weights, LoadGptWeights(path, config, options.weights));
  return GptModel::Create(config, std::move(weights),
                          {.max_position = options.max_position,
                           .collectives = options.collectives,
                           .context = options.context});
}

}  // namespace

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/config.json");
  REPRISE_ASSIGN_OR_RETURN(const nlohmann::json config, ReadConfigFile(path));
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(config, path));
  std::vector<ModelKind> kinds = DecoderKinds();
  const size_t num_decoder_kinds = kinds.size();
  kinds.insert(kinds.end(), kBartKinds.begin(), kBartKinds.end());
  kinds.insert(kinds.end(), kGptKinds.begin(), kGptKinds.end());
  REPRISE_ASSIGN_OR_RETURN(const size_t kind, FindModelKind(fields, kinds));
  if (kind < num_decoder_kinds) return LoadDecoderConfig(folder);
  if (kind < num_decoder_kinds + kBartKinds.size()) return LoadBartConfig(folder);
  return LoadGptConfig(folder);
}

int64_t NumParameters(const ModelConfig& config) {
  int64_t num_parameters = 0;
  for (const ExpectedTensor& tensor :
       std::visit([](const auto& family) { return TensorsOf(family); }, config)) {
    num_parameters += NumElements(tensor.shape).value_or(0);
  }
  return num_parameters;
}

int ModelFolder::max_seq_len() const {
  return std::visit([](const auto& family) { return family.max_seq_len; }, config);
}

const std::vector<int32_t>& ModelFolder::eos_token_ids() const {
  return std::visit(
      [](const auto& family) -> const auto& { return family.eos_token_ids; }, config);
}

std::string ModelFolder::WhyNoTokenizer() const {
  CHECK(!tokenizer.has_value());
  if (tokenizer_error.ok()) return absl::StrCat(path, " has no tokenizer.json");
  return absl::StrCat("the tokenizer cannot be read (", tokenizer_error.message(), ")");
}

absl::StatusOr<ModelFolder> ModelFolder::Open(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (path.empty()) return absl::InvalidArgumentError("expected a model folder, got an empty path");
  if (!fs::exists(path, ignored)) {
    return absl::NotFoundError(absl::StrCat(path, ": there is no such folder"));
  }
  if (!fs::is_directory(path, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a folder, got a file"));
  }
  ModelFolder folder = {.path = path, .config = {}, .tokenizer = {}};
  REPRISE_ASSIGN_OR_RETURN(folder.config, LoadModelConfig(path));
  const std::string tokenizer = path + "/tokenizer.json";
  if (fs::exists(fs::symlink_status(tokenizer, ignored))) {
    absl::StatusOr<Tokenizer> loaded = Tokenizer::LoadFolder(path);
    if (loaded.ok()) {
      folder.tokenizer = *std::move(loaded);
    } else {
      folder.tokenizer_error = loaded.status();
    }
  }
  return folder;
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& path, const ModelConfig& config,
                                                 const LoadModelOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckWeightOptions(options.weights));
  LoadModelOptions own = options;
  own.weights.ranks = RanksOf(options.collectives);
  const auto check = [&](const auto& family) { return CheckCanBeSharded(family, own); };
  if (options.unsharded == Unsharded::kRefused || std::visit(check, config).ok()) {
    return std::visit([&](const auto& family) { return Load(path, family, own); }, config);
  }
  own.collectives = nullptr;
  own.weights.ranks = {};
  REPRISE_ASSIGN_OR_RETURN(
      std::unique_ptr<Model> whole,
      std::visit([&](const auto& family) { return Load(path, family, own); }, config));
  return ReplicateOverRanks(std::move(whole), options.collectives);
}

absl::StatusOr<std::string> DefaultModelFolder() {
  const std::optional<std::string> folder = FindData("examples/models/jargon-llama", DataRoots());
  if (folder.has_value()) return *folder;
  return absl::NotFoundError(
      "the model that comes with the project was not found beside the program: give --model");
}

}  // namespace reprise
