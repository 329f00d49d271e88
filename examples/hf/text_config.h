// Unstable: any version may change this header (docs/embedding.md).
//
// The config of a language model inside a larger one: Gemma3ForConditionalGeneration and the like
// describe a vision tower and, in "text_config", a decoder, which runs alone on texts.
//
//   REPRISE_ASSIGN_OR_RETURN(const size_t kind, FindModelKind(file_fields, kinds));  // whole file
//   REPRISE_ASSIGN_OR_RETURN(const nlohmann::json text, TextConfigOf(config));
//   REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, ConfigFields(text, TextConfigWhere(config)));
//   const TensorNames names = IsWrapped(config) ? TensorNames::kWrapped : TensorNames::kPlain;
//
// Thread safety: pure functions.

#ifndef REPRISE_HF_TEXT_CONFIG_H_
#define REPRISE_HF_TEXT_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace reprise {

// Whether a config.json has an object "text_config".
bool IsWrapped(const nlohmann::json& config);

// Returns "text_config" of a wrapped config.json, without "architectures", and with these members
// of the file around it, if they are present and not null:
//
//   tie_word_embeddings   The outer member wins: transformers ties the head of the wrapper by it.
//                         transformers 5 falls back to the default of the wrapper's class,
//                         transformers 4 to the inner member, as this function does.
//   dtype, torch_dtype    The outer members win, as in from_pretrained(dtype="auto"). "auto" counts
//                         as absent.
//   eos_token_id          The outer member wins, as in GenerationConfig.from_model_config().
//   quantization_config   The outer member wins: transformers reads no other one. The inner member
//                         counts without it, as Kimi K2.5 has it.
//
// Defaults of absent fields are left to the reader of the family. Another config is returned
// unchanged, also if "text_config" is null. Errors: InvalidArgument, naming the field, if `config`
// or "text_config" is not an object, or one of the outer members has a wrong type.
absl::StatusOr<nlohmann::json> TextConfigOf(const nlohmann::json& config);

// Returns the beginning of messages about members of TextConfigOf(config), for ConfigFields():
// "config.json: text_config" if the config is wrapped, "config.json" otherwise.
std::string TextConfigWhere(const nlohmann::json& config);

}  // namespace reprise

#endif  // REPRISE_HF_TEXT_CONFIG_H_
