#include "reprise/hf/tokenizer/tokenizer_parts.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/strict_json.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr size_t kMaxParts = 64;

// Appends `part` or, if it is a Sequence, its parts. ParseJson() bounds how deep they are nested.
absl::Status AppendParts(const JsonFields& part, std::string_view members,
                         std::vector<JsonFields>& parts) {
  REPRISE_ASSIGN_OR_RETURN(const std::string type, part.String("type"));
  if (type != "Sequence") {
    if (parts.size() == kMaxParts) return part.Unexpected("type", "at most 64 parts");
    parts.push_back(part);
    return absl::OkStatus();
  }
  REPRISE_RETURN_IF_ERROR(part.RefuseOthers({"type", members}));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<JsonFields> inner, Objects(part, members));
  for (const JsonFields& one : inner) REPRISE_RETURN_IF_ERROR(AppendParts(one, members, parts));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<JsonFields>> Parts(const JsonFields& root, std::string_view name,
                                              std::string_view members) {
  std::vector<JsonFields> parts;
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> part, root.OptionalObject(name));
  if (part.has_value()) REPRISE_RETURN_IF_ERROR(AppendParts(*part, members, parts));
  return parts;
}

absl::StatusOr<std::vector<JsonFields>> Objects(const JsonFields& fields, std::string_view name) {
  REPRISE_ASSIGN_OR_RETURN(const json* const array, fields.Array(name));
  std::vector<JsonFields> objects;
  for (const json& element : *array) {
    REPRISE_ASSIGN_OR_RETURN(
        JsonFields object,
        JsonFields::Of(element, absl::StrCat(fields.where(), ": ", std::string(name), "[",
                                             objects.size(), "]")));
    objects.push_back(std::move(object));
  }
  return objects;
}

absl::Status ExpectUnused(const JsonFields& fields, std::string_view name) {
  const json* const value = fields.Find(name);
  if (value == nullptr || *value == "" || *value == false) return absl::OkStatus();
  return fields.Unexpected(name, "null, as this feature is not supported");
}

absl::Status ExpectString(const JsonFields& fields, std::string_view name,
                          std::string_view expected) {
  const json* const value = fields.Find(name);
  if (value != nullptr && *value == expected) return absl::OkStatus();
  return fields.Unexpected(name, DescribeJson(json(expected)));
}

absl::StatusOr<std::string> NonEmptyString(const JsonFields& fields, std::string_view name) {
  REPRISE_ASSIGN_OR_RETURN(std::string text, fields.String(name));
  if (text.empty()) return fields.Unexpected(name, "at least one character");
  return text;
}

absl::StatusOr<std::string> OneCharacter(const JsonFields& fields, std::string_view name) {
  REPRISE_ASSIGN_OR_RETURN(std::string text, fields.String(name));
  const bool is_one =
      !text.empty() && static_cast<size_t>(FirstUtf8Unit(text).length) == text.size();
  if (!is_one) return fields.Unexpected(name, "one character");
  return text;
}

absl::StatusOr<bool> BoolOr(const JsonFields& fields, std::string_view name, bool otherwise) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> value, fields.OptionalBool(name));
  return value.value_or(otherwise);
}

}  // namespace reprise
