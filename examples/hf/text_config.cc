#include "reprise/hf/text_config.h"

#include <optional>

#include "absl/status/status.h"
#include "reprise/base/status_macros.h"
#include "reprise/hf/config_fields.h"
#include "reprise/hf/json_fields.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr char kFile[] = "config.json";
constexpr char kTextConfig[] = "text_config";

// Copies the member unless it is absent or null.
void Inherit(const JsonFields& outer, const char* name, json& text) {
  const json* const member = outer.Find(name);
  if (member != nullptr) text[name] = *member;
}

}  // namespace

bool IsWrapped(const json& config) {
  if (!config.is_object()) return false;
  const auto text = config.find(kTextConfig);
  return text != config.end() && text->is_object();
}

std::string TextConfigWhere(const json& config) {
  return IsWrapped(config) ? "config.json: text_config" : kFile;
}

absl::StatusOr<json> TextConfigOf(const json& config) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields outer, ConfigFields(config, kFile));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> inner,
                           outer.OptionalObject(kTextConfig));
  if (!inner.has_value()) return config;
  // Wrong values would be reported as members of text_config.
  REPRISE_RETURN_IF_ERROR(outer.OptionalBool("tie_word_embeddings").status());
  REPRISE_RETURN_IF_ERROR(outer.OptionalObject("quantization_config").status());
  REPRISE_RETURN_IF_ERROR(outer.OptionalInts("eos_token_id", {.max = kVocabRange.max}).status());
  REPRISE_ASSIGN_OR_RETURN(const std::optional<DType> dtype, ReadWeightDType(outer));
  json text = inner->object();
  text.erase("architectures");
  for (const char* name : {"tie_word_embeddings", "quantization_config", "eos_token_id"}) {
    Inherit(outer, name, text);
  }
  if (dtype.has_value()) {
    for (const char* name : {"dtype", "torch_dtype"}) {
      text.erase(name);
      Inherit(outer, name, text);
    }
  }
  return text;
}

}  // namespace reprise
