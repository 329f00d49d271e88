#include "tests/golden/golden.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/config_fields.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/paths.h"
#include "reprise/hf/safetensors.h"
#include "reprise/hf/strict_json.h"
#include "reprise/hf/tensor_view.h"

namespace reprise {
namespace {

constexpr int kNumPrompts = 5;

// If the files hold the encoder's inputs, the decoder begins with this token, as in their configs.
constexpr int32_t kDecoderStart = 2;

template <typename Id>
absl::StatusOr<TokenList> Tokens(const SafetensorsFile& file, const std::string& name) {
  REPRISE_ASSIGN_OR_RETURN(const TensorView view, file.Find(name));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<Id> ids, CopyElements<Id>(view));
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

// Returns forced_median if the model of bf16_error.json chooses experts, and nullopt otherwise.
absl::StatusOr<std::optional<std::vector<double>>> Medians(const nlohmann::json& json) {
  if (!json.contains("smallest_distance_of_a_choice")) return std::nullopt;
  return Errors(json, "forced_median");
}

// Returns the size of the text model's vocabulary. A wrapped config has it in `text_config`.
absl::StatusOr<int> VocabSize(const std::string& folder) {
  REPRISE_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(folder + "/config.json"));
  REPRISE_ASSIGN_OR_RETURN(const JsonFields config, JsonFields::Of(json, "config.json"));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> text,
                           config.OptionalObject("text_config"));
  return ReadInt(text.value_or(config), "vocab_size", kVocabRange);
}

// About as many logits per position as hidden states have elements.
constexpr size_t kMinLogitTokens = 64;

absl::Status CheckTrack(const GoldenTrack& track, const std::string& name) {
  const TokenList& columns = track.logit_tokens;
  const bool are_tokens = std::is_sorted(columns.begin(), columns.end(), std::less_equal<>()) &&
                          columns.front() >= 0 && columns.back() < track.vocab_size;
  if (are_tokens && columns.size() >= kMinLogitTokens &&
      track.tokens.size() * columns.size() == track.logits.size()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", track.tokens.size(), " tokens, ",
                                                 track.logits.size(), " logits of ", columns.size(),
                                                 " tokens of ", track.vocab_size));
}

// `prefix` is "" or "forced_".
absl::StatusOr<GoldenTrack> ReadTrack(const SafetensorsFile& file, const std::string& tokens,
                                      const std::string& prefix, int prompt, int vocab_size) {
  GoldenTrack track = {.vocab_size = vocab_size};
  REPRISE_ASSIGN_OR_RETURN(track.tokens, Tokens<int64_t>(file, absl::StrCat(tokens, prompt)));
  REPRISE_ASSIGN_OR_RETURN(track.logit_tokens,
                           Tokens<int32_t>(file, absl::StrCat(prefix, "logits_tokens_", prompt)));
  const std::string name = absl::StrCat(prefix, "logits_", prompt);
  REPRISE_ASSIGN_OR_RETURN(track.logits, Floats(file, name));
  REPRISE_RETURN_IF_ERROR(CheckTrack(track, name));
  return track;
}

}  // namespace

GoldenLogits GoldenTrack::AllLogits() const {
  return {.vocab_size = vocab_size, .tokens = logit_tokens, .values = logits};
}

GoldenLogits GoldenTrack::LogitsBefore(int begin, int count) const {
  const size_t row = logit_tokens.size();
  CHECK_LE((begin + count) * row, logits.size());
  return {.vocab_size = vocab_size,
          .tokens = logit_tokens,
          .values = absl::MakeConstSpan(logits).subspan(begin * row, count * row)};
}

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
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<double>> medians, Medians(json));
  golden.has_bf16_medians = medians.has_value();
  REPRISE_ASSIGN_OR_RETURN(golden.vocab_size, VocabSize(golden.folder));
  for (int i = 0; i < kNumPrompts; ++i) {
    GoldenPrompt prompt;
    const std::string encoder_name = absl::StrCat("encoder_", i);
    if (file.Find(encoder_name).ok()) {
      REPRISE_ASSIGN_OR_RETURN(prompt.encoder_tokens, Tokens<int64_t>(file, encoder_name));
      prompt.prompt = {kDecoderStart};
    } else {
      REPRISE_ASSIGN_OR_RETURN(prompt.prompt, Tokens<int64_t>(file, absl::StrCat("prompt_", i)));
    }
    REPRISE_ASSIGN_OR_RETURN(prompt.greedy, ReadTrack(file, "tokens_", "", i, golden.vocab_size));
    REPRISE_ASSIGN_OR_RETURN(prompt.margins, Floats(file, absl::StrCat("margin_", i)));
    REPRISE_ASSIGN_OR_RETURN(prompt.forced,
                             ReadTrack(file, "forced_", "forced_", i, golden.vocab_size));
    prompt.greedy.bf16_rms = greedy_rms[i];
    prompt.forced.bf16_rms = forced_rms[i];
    if (medians.has_value()) {
      prompt.greedy.bf16_median = (*medians)[i];
      prompt.forced.bf16_median = (*medians)[i];
    }
    golden.prompts.push_back(std::move(prompt));
  }
  return golden;
}

}  // namespace reprise
