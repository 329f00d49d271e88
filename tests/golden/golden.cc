#include "tests/golden/golden.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "examples/llama/data_path.h"
#include "examples/llama/safetensors.h"
#include "examples/llama/strict_json.h"
#include "examples/llama/tensor_view.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

constexpr int kNumPrompts = 5;

// Where the files hold the encoder's inputs, the decoder begins with this token, as their configs
// say.
constexpr int32_t kDecoderStart = 2;

absl::StatusOr<TokenList> Tokens(const SafetensorsFile& file, const std::string& name) {
  REPRISE_ASSIGN_OR_RETURN(const TensorView view, file.Find(name));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, CopyElements<int64_t>(view));
  return TokenList(ids.begin(), ids.end());
}

absl::StatusOr<std::vector<float>> Floats(const SafetensorsFile& file, const std::string& name) {
  REPRISE_ASSIGN_OR_RETURN(const TensorView view, file.Find(name));
  return CopyElements<float>(view);
}

// The five numbers of a member of bf16_error.json.
absl::StatusOr<std::vector<double>> Errors(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_array() || found->size() != kNumPrompts) {
    return absl::InvalidArgumentError(absl::StrCat("bf16_error.json has no list ", name));
  }
  std::vector<double> errors;
  for (const nlohmann::json& value : *found) {
    if (!value.is_number()) return absl::InvalidArgumentError(absl::StrCat(name, " is no list"));
    errors.push_back(value.get<double>());
  }
  return errors;
}

absl::Status CheckTrack(const GoldenTrack& track, const std::string& name, int vocab_size) {
  if (track.tokens.size() * static_cast<size_t>(vocab_size) == track.logits.size()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", track.tokens.size(), " tokens and ",
                                                 track.logits.size(), " logits"));
}

}  // namespace

absl::StatusOr<Golden> LoadGolden(const std::string& name) {
  Golden golden = {.name = name};
  const std::optional<std::string> folder = FindData("tests/goldens/" + name, DataRoots());
  if (!folder.has_value()) {
    return absl::NotFoundError(absl::StrCat("tests/goldens/", name, " was not found"));
  }
  golden.folder = *folder;
  REPRISE_ASSIGN_OR_RETURN(const SafetensorsFile file,
                           SafetensorsFile::Open(golden.folder + "/golden.safetensors"));
  REPRISE_ASSIGN_OR_RETURN(const nlohmann::json json,
                           ReadJsonFile(golden.folder + "/bf16_error.json"));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<double> greedy_rms, Errors(json, "rms"));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<double> forced_rms, Errors(json, "forced_rms"));
  REPRISE_ASSIGN_OR_RETURN(const TensorView first, file.Find("logits_0"));
  golden.vocab_size = static_cast<int>(first.shape.back());
  for (int i = 0; i < kNumPrompts; ++i) {
    GoldenPrompt prompt;
    const std::string encoder_name = absl::StrCat("encoder_", i);
    if (file.Find(encoder_name).ok()) {
      REPRISE_ASSIGN_OR_RETURN(prompt.encoder_tokens, Tokens(file, encoder_name));
      prompt.prompt = {kDecoderStart};
    } else {
      REPRISE_ASSIGN_OR_RETURN(prompt.prompt, Tokens(file, absl::StrCat("prompt_", i)));
    }
    REPRISE_ASSIGN_OR_RETURN(prompt.greedy.tokens, Tokens(file, absl::StrCat("tokens_", i)));
    REPRISE_ASSIGN_OR_RETURN(prompt.greedy.logits, Floats(file, absl::StrCat("logits_", i)));
    REPRISE_ASSIGN_OR_RETURN(prompt.margins, Floats(file, absl::StrCat("margin_", i)));
    REPRISE_ASSIGN_OR_RETURN(prompt.forced.tokens, Tokens(file, absl::StrCat("forced_", i)));
    REPRISE_ASSIGN_OR_RETURN(prompt.forced.logits, Floats(file, absl::StrCat("forced_logits_", i)));
    prompt.greedy.bf16_rms = greedy_rms[i];
    prompt.forced.bf16_rms = forced_rms[i];
    REPRISE_RETURN_IF_ERROR(CheckTrack(prompt.greedy, "greedy", golden.vocab_size));
    REPRISE_RETURN_IF_ERROR(CheckTrack(prompt.forced, "forced", golden.vocab_size));
    golden.prompts.push_back(std::move(prompt));
  }
  return golden;
}

}  // namespace reprise
