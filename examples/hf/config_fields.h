// Unstable: any version may change this header (docs/embedding.md).
//
// What the config.json files of all families have in common, each member read and checked.
//
//   REPRISE_ASSIGN_OR_RETURN(config.hidden_size, ReadInt(fields, "hidden_size", kWidthRange));
//   REPRISE_ASSIGN_OR_RETURN(config.dtype, ReadWeightDType(fields));
//
// Errors are InvalidArgument, naming the field, what was expected and what was got. Thread safety:
// pure functions.

#ifndef REPRISE_HF_CONFIG_FIELDS_H_
#define REPRISE_HF_CONFIG_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/strict_json.h"

namespace reprise {

// Far above any known model, and low enough that products of two stay within int64_t, and that of
// heads and a head's size (at most kMaxProjection) within int.
inline constexpr IntRange kWidthRange = {.min = 1, .max = 1 << 20};
inline constexpr IntRange kLayersRange = {.min = 1, .max = 1 << 12};
inline constexpr IntRange kHeadsRange = {.min = 1, .max = 1 << 16};
inline constexpr IntRange kHeadDimRange = {.min = 2, .max = 1 << 12};
inline constexpr IntRange kVocabRange = {.min = 1, .max = 1 << 24};
inline constexpr IntRange kSeqLenRange = {.min = 1, .max = 1 << 28};
inline constexpr int64_t kMaxProjection = 1 << 22;

// The members of a config.json or a generation_config.json. Python's programs write some sizes as
// 64.0, so an integer may have any form. Errors: those of JsonFields::Of().
absl::StatusOr<JsonFields> ConfigFields(const nlohmann::json& config, std::string where);

// Like JsonFields::Int(), for ranges within int's.
absl::StatusOr<int> ReadInt(const JsonFields& fields, std::string_view name, IntRange range);

// "dtype", or "torch_dtype" in older files; nullopt if neither names a type. "auto", the argument
// of from_pretrained() that some files keep, counts as absent.
absl::StatusOr<std::optional<DType>> ReadWeightDType(const JsonFields& fields);

// "num_nextn_predict_layers": layers after the model's own that predict further tokens; 0 if
// absent.
absl::StatusOr<int> ReadPredictionLayers(const JsonFields& fields);

// `known` and what "eos_token_id" adds to them; ascending, none twice.
absl::StatusOr<std::vector<int32_t>> WithEndTokens(std::vector<int32_t> known,
                                                   const JsonFields& fields, int vocab_size);

// InvalidArgument if config.json describes quantised weights.
absl::Status RefuseQuantization(const JsonFields& fields);

// The activation of a config by one of transformers' names for it: "silu" for "swish", "gelu" for
// "gelu_python", and "gelu_pytorch_tanh" for "gelu_new", "gelu_fast" and "gelu_accurate", which are
// the same function. Other names unchanged; nullopt if the member is absent. Errors:
// InvalidArgument if it is not a string.
absl::StatusOr<std::optional<std::string>> ReadActivationName(const JsonFields& fields,
                                                              std::string_view name);

// How a family of models calls itself in config.json.
struct ModelKind {
  const char* class_name;  // in "architectures"; nullptr: the family is only found wrapped
  const char* model_type;  // not null
  // The larger model that contains the family's decoder and describes it in "text_config"
  // (text_config.h), for example with a vision tower. Families may share a wrapper. nullptr if the
  // family has no wrapper.
  const char* wrapper_class = nullptr;
  const char* wrapper_model_type = nullptr;
  // "model_type" within "text_config"; nullptr: model_type.
  const char* text_model_type = nullptr;
};

// Returns the index of the family that config.json names. `fields` is the whole file.
//   A file without "text_config": by the class in "architectures", or by "model_type" in the rare
//     file without a class.
//   A file with "text_config": by the class or "model_type" of the wrapper and by "model_type"
//     within text_config. If the latter is absent, the wrapper's first family is meant.
// Errors: InvalidArgument, naming the known families, also if text_config is not an object. A list
// beyond 215 characters is cut, and the number of further families follows.
absl::StatusOr<size_t> FindModelKind(const JsonFields& fields, absl::Span<const ModelKind> kinds);

// `config` with the end tokens of a generation_config.json added to its own: a model may end with
// either. Families that read more from that file have an overload.
template <typename Config>
absl::StatusOr<Config> WithGenerationConfig(Config config,
                                            const nlohmann::json& generation_config) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields,
                           ConfigFields(generation_config, "generation_config.json"));
  REPRISE_ASSIGN_OR_RETURN(config.eos_token_ids, WithEndTokens(std::move(config.eos_token_ids),
                                                               fields, config.vocab_size));
  return config;
}

// parse(<folder>/config.json), and then, if that exists, WithGenerationConfig() of
// <folder>/generation_config.json. Errors: those of ReadConfigFile() and of the functions, naming
// the file.
template <typename Config>
absl::StatusOr<Config> LoadModelConfig(const std::string& folder,
                                       absl::StatusOr<Config> (*parse)(const nlohmann::json&)) {
  // The messages of the parsers begin with the file's name.
  const auto in_folder = [&](absl::StatusOr<Config> config) -> absl::StatusOr<Config> {
    if (config.ok()) return config;
    return absl::Status(config.status().code(),
                        absl::StrCat(folder, "/", config.status().message()));
  };
  REPRISE_ASSIGN_OR_RETURN(const nlohmann::json config,
                           ReadConfigFile(absl::StrCat(folder, "/config.json")));
  REPRISE_ASSIGN_OR_RETURN(Config result, in_folder(parse(config)));
  const absl::StatusOr<nlohmann::json> generation_config =
      ReadConfigFile(absl::StrCat(folder, "/generation_config.json"));
  if (absl::IsNotFound(generation_config.status())) return result;
  REPRISE_RETURN_IF_ERROR(generation_config.status());
  return in_folder(WithGenerationConfig(std::move(result), *generation_config));
}

}  // namespace reprise

#endif  // REPRISE_HF_CONFIG_FIELDS_H_
