#include "reprise/hf/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/json_fields.h"

namespace reprise {
namespace {

using nlohmann::json;

// A class whose template is made of the fields, with its tokens for a config that names none.
struct TokenizerClass {
  std::string_view name;  // without "Fast"
  const char* bos;
  const char* eos;
};
constexpr std::array<TokenizerClass, 4> kClasses = {
    {{"LlamaTokenizer", "<s>", "</s>"},
     {"CodeLlamaTokenizer", "<s>", "</s>"},
     {"GemmaTokenizer", "<bos>", "<eos>"},
     {"CohereTokenizer", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"}}};

const TokenizerClass* FindClass(std::string_view name) {
  constexpr std::string_view kFast = "Fast";
  if (name.size() > kFast.size() && name.substr(name.size() - kFast.size()) == kFast) {
    name.remove_suffix(kFast.size());
  }
  const auto* const it = std::find_if(kClasses.begin(), kClasses.end(),
                                      [&](const TokenizerClass& c) { return c.name == name; });
  return it == kClasses.end() ? nullptr : it;
}

std::optional<int32_t> FindToken(const TokenizerSpec& spec, const std::string& content) {
  for (const AddedToken& token : spec.added_tokens) {
    if (token.content == content) return token.id;
  }
  for (const auto& [text, id] : spec.model.vocabulary) {
    if (text == content) return id;
  }
  return std::nullopt;
}

// Sets `side` by the fields `flag` ("add_bos_token") and `name` ("bos_token": a text, or an object
// with its "content"). An absent flag does not change `side`.
absl::Status SetSide(const JsonFields& config, const char* flag, const char* name,
                     const char* default_token, const TokenizerSpec& spec,
                     std::vector<int32_t>& side) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> is_added, config.OptionalBool(flag));
  if (!is_added.has_value()) return absl::OkStatus();
  side.clear();
  if (!*is_added) return absl::OkStatus();
  std::string content = default_token;
  const json* const token = config.Find(name);
  if (token != nullptr && token->is_object()) {
    REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, config.Object(name));
    REPRISE_ASSIGN_OR_RETURN(content, fields.String("content"));
  } else if (token != nullptr) {
    REPRISE_ASSIGN_OR_RETURN(content, config.String(name));
  }
  const std::optional<int32_t> id = FindToken(spec, content);
  if (!id.has_value()) return config.Unexpected(name, "a token of tokenizer.json");
  side.push_back(*id);
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplyTokenizerConfig(const json& config, const std::string& file,
                                  TokenizerSpec& spec) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(config, file));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> name,
                           fields.OptionalString("tokenizer_class"));
  const TokenizerClass* const tokenizer_class = FindClass(name.value_or(""));
  if (tokenizer_class == nullptr) return absl::OkStatus();
  TextTemplate made = spec.text_template;
  REPRISE_RETURN_IF_ERROR(
      SetSide(fields, "add_bos_token", "bos_token", tokenizer_class->bos, spec, made.prefix));
  REPRISE_RETURN_IF_ERROR(
      SetSide(fields, "add_eos_token", "eos_token", tokenizer_class->eos, spec, made.suffix));
  spec.text_template = std::move(made);
  return absl::OkStatus();
}

}  // namespace reprise
