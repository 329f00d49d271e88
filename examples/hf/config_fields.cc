#include "reprise/hf/config_fields.h"

#include <algorithm>
#include <utility>

#include "nlohmann/json.hpp"
#include "reprise/hf/bounded_list.h"

namespace reprise {

absl::StatusOr<JsonFields> ConfigFields(const nlohmann::json& config, std::string where) {
  return JsonFields::Of(config, std::move(where), IntegerForm::kAnyForm);
}

absl::StatusOr<int> ReadInt(const JsonFields& fields, std::string_view name, IntRange range) {
  REPRISE_ASSIGN_OR_RETURN(const int64_t number, fields.Int(name, range));
  return static_cast<int>(number);
}

absl::StatusOr<std::optional<DType>> ReadWeightDType(const JsonFields& fields) {
  // The new name has priority; some files have both.
  for (const char* name : {"dtype", "torch_dtype"}) {
    REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> text, fields.OptionalString(name));
    if (!text || *text == "auto") continue;
    const std::optional<DType> dtype = ParseDType(*text);
    if (!dtype || IsFp8(*dtype)) {
      return fields.Unexpected(name, "\"float32\", \"bfloat16\", \"float16\" or \"float64\"");
    }
    return dtype;
  }
  return std::optional<DType>();
}

absl::StatusOr<std::optional<std::string>> ReadActivationName(const JsonFields& fields,
                                                              std::string_view name) {
  constexpr std::pair<const char*, const char*> kOtherNames[] = {
      {"swish", "silu"},
      {"gelu_python", "gelu"},
      {"gelu_new", "gelu_pytorch_tanh"},
      {"gelu_fast", "gelu_pytorch_tanh"},
      {"gelu_accurate", "gelu_pytorch_tanh"}};
  REPRISE_ASSIGN_OR_RETURN(std::optional<std::string> given, fields.OptionalString(name));
  for (const auto& [other, usual] : kOtherNames) {
    if (given == other) return std::optional<std::string>(usual);
  }
  return given;
}

absl::StatusOr<int> ReadPredictionLayers(const JsonFields& fields) {
  REPRISE_ASSIGN_OR_RETURN(
      const std::optional<int64_t> number,
      fields.OptionalInt("num_nextn_predict_layers", {.min = 0, .max = kLayersRange.max}));
  return static_cast<int>(number.value_or(0));
}

absl::StatusOr<std::vector<int32_t>> WithEndTokens(std::vector<int32_t> known,
                                                   const JsonFields& fields, int vocab_size) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> ids,
                           fields.OptionalInts("eos_token_id", {.min = 0, .max = vocab_size - 1}));
  if (ids) known.insert(known.end(), ids->begin(), ids->end());
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  return known;
}

absl::StatusOr<size_t> FindModelKind(const JsonFields& fields, absl::Span<const ModelKind> kinds) {
  const nlohmann::json* const classes = fields.Find("architectures");
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> model_type,
                           fields.OptionalString("model_type"));
  for (size_t i = 0; i < kinds.size(); ++i) {
    const bool is_this = classes != nullptr
                             ? *classes == nlohmann::json::array({kinds[i].class_name})
                             : model_type == kinds[i].model_type;
    if (is_this) return i;
  }
  constexpr size_t kMaxListLength = 215;
  std::vector<std::string_view> names;
  for (const ModelKind& kind : kinds) names.push_back(kind.class_name);
  return fields.Unexpected(
      classes == nullptr && model_type ? "model_type" : "architectures",
      absl::StrCat("a supported architecture (", BoundedList(names, kMaxListLength), ")"));
}

absl::Status RefuseQuantization(const JsonFields& fields) {
  if (fields.Find("quantization_config") == nullptr) return absl::OkStatus();
  return fields.Unexpected("quantization_config", "nothing, as quantization is not supported");
}

}  // namespace reprise
