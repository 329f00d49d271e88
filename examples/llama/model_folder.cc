#include "examples/llama/model_folder.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "examples/llama/data_path.h"
#include "examples/llama/json_fields.h"
#include "examples/llama/llama_families.h"
#include "examples/llama/strict_json.h"
#include "nlohmann/json.hpp"

namespace reprise {

namespace {

absl::StatusOr<std::variant<LlamaConfig, MlaConfig, BartConfig>> LoadConfig(
    const std::string& folder) {
  REPRISE_ASSIGN_OR_RETURN(const nlohmann::json config,
                           ReadJsonFile(absl::StrCat(folder, "/config.json")));
  if (IsMlaConfig(config)) return LoadMlaConfig(folder);
  if (IsBartConfig(config)) return LoadBartConfig(folder);
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields,
                           JsonFields::Of(config, absl::StrCat(folder, "/config.json")));
  REPRISE_RETURN_IF_ERROR(
      FindLlamaFamily(fields, {"DeepseekV2ForCausalLM", "BartForConditionalGeneration"}).status());
  return LoadLlamaConfig(folder);
}

}  // namespace

int ModelFolder::max_seq_len() const {
  return std::visit([](const auto& family) { return family.max_seq_len; }, config);
}

const std::vector<int32_t>& ModelFolder::eos_token_ids() const {
  return std::visit(
      [](const auto& family) -> const auto& { return family.eos_token_ids; }, config);
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
  REPRISE_ASSIGN_OR_RETURN(folder.config, LoadConfig(path));
  const std::string tokenizer = path + "/tokenizer.json";
  if (fs::exists(fs::symlink_status(tokenizer, ignored))) {
    REPRISE_ASSIGN_OR_RETURN(folder.tokenizer, Tokenizer::Load(tokenizer));
  }
  return folder;
}

absl::StatusOr<std::string> DefaultModelFolder() {
  const std::optional<std::string> folder =
      FindData("examples/llama/models/jargon-llama", DataRoots());
  if (folder.has_value()) return *folder;
  return absl::NotFoundError(
      "the model that comes with the project was not found beside the program: give --model");
}

}  // namespace reprise
