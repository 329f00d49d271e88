#include "reprise/hf/config_fields.h"

#include <algorithm>
#include <utility>

#include "nlohmann/json.hpp"
#include "reprise/hf/bounded_list.h"

namespace reprise {
namespace {

// What a config.json calls its model.
struct ModelNames {
  const nlohmann::json* classes = nullptr;  // "architectures"
  std::optional<std::string> model_type = {};

  // By the class, or by the type if there is no class. A null name is none.
  bool Are(const char* class_name, const char* type) const {
    if (classes == nullptr) return type != nullptr && model_type == type;
    return class_name != nullptr && *classes == nlohmann::json::array({class_name});
  }
  // The field to name in a message.
  const char* field() const {
    return classes == nullptr && model_type.has_value() ? "model_type" : "architectures";
  }
};

absl::StatusOr<ModelNames> ReadModelNames(const JsonFields& fields) {
  REPRISE_ASSIGN_OR_RETURN(std::optional<std::string> model_type,
                           fields.OptionalString("model_type"));
  return ModelNames{.classes = fields.Find("architectures"), .model_type = std::move(model_type)};
}

using Names = std::vector<std::string_view>;

void AddOnce(const char* name, Names& names) {
  if (name == nullptr || std::find(names.begin(), names.end(), name) != names.end()) return;
  names.push_back(name);
}

Names WrapperClasses(absl::Span<const ModelKind> kinds) {
  Names names;
  for (const ModelKind& kind : kinds) AddOnce(kind.wrapper_class, names);
  return names;
}

Names AllClasses(absl::Span<const ModelKind> kinds) {
  Names names;
  for (const ModelKind& kind : kinds) {
    if (kind.class_name != nullptr) names.push_back(kind.class_name);
  }
  for (const std::string_view name : WrapperClasses(kinds)) names.push_back(name);
  return names;
}

std::string AnyOf(const Names& classes) {
  constexpr size_t kMaxListLength = 215;
  return absl::StrCat("a supported architecture (", BoundedList(classes, kMaxListLength), ")");
}

const char* TextType(const ModelKind& kind) {
  return kind.text_model_type != nullptr ? kind.text_model_type : kind.model_type;
}

// FindModelKind() of a file with "text_config".
absl::StatusOr<size_t> FindWrappedKind(const JsonFields& fields, const ModelNames& names,
                                       absl::Span<const ModelKind> kinds) {
  constexpr size_t kMaxListLength = 100;
  REPRISE_ASSIGN_OR_RETURN(const JsonFields text, fields.Object("text_config"));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> text_type,
                           text.OptionalString("model_type"));
  bool is_supported_text = false;
  const char* wrapper = nullptr;
  Names texts;  // of this wrapper
  for (size_t i = 0; i < kinds.size(); ++i) {
    const bool has_type = text_type == TextType(kinds[i]);
    is_supported_text |= has_type || text_type == kinds[i].model_type;
    if (!names.Are(kinds[i].wrapper_class, kinds[i].wrapper_model_type)) continue;
    if (has_type || !text_type.has_value()) return i;
    wrapper = kinds[i].wrapper_class;
    AddOnce(TextType(kinds[i]), texts);
  }
  if (wrapper != nullptr) {
    return text.Unexpected("model_type", absl::StrCat("a supported text model of ", wrapper, " (",
                                                      BoundedList(texts, kMaxListLength), ")"));
  }
  const Names wrappers = WrapperClasses(kinds);
  if (!is_supported_text) {
    return fields.Unexpected(names.field(), AnyOf(wrappers.empty() ? AllClasses(kinds) : wrappers));
  }
  const std::string known = wrappers.empty() ? "none" : BoundedList(wrappers, kMaxListLength);
  return fields.Unexpected(
      names.field(),
      absl::StrCat("a supported class (", known, ") around its text_config, whose type ",
                   DescribeJson(*text.Find("model_type")), " is supported"));
}

}  // namespace

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
  REPRISE_ASSIGN_OR_RETURN(const ModelNames names, ReadModelNames(fields));
  if (fields.Find("text_config") != nullptr) return FindWrappedKind(fields, names, kinds);
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (names.Are(kinds[i].class_name, kinds[i].model_type)) return i;
  }
  for (const ModelKind& kind : kinds) {
    if (!names.Are(kind.wrapper_class, kind.wrapper_model_type)) continue;
    return fields.Unexpected("text_config",
                             absl::StrCat("an object, as ", kind.wrapper_class, " has it"));
  }
  return fields.Unexpected(names.field(), AnyOf(AllClasses(kinds)));
}

absl::Status RefuseQuantization(const JsonFields& fields) {
  if (fields.Find("quantization_config") == nullptr) return absl::OkStatus();
  return fields.Unexpected("quantization_config", "nothing, as quantization is not supported");
}

}  // namespace reprise
