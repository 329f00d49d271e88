#include "reprise/hf/json_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/bounded_list.h"
#include "reprise/hf/strict_json.h"

namespace reprise {
namespace {

using nlohmann::json;

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

// The integer that a number equals. nlohmann keeps integers past 2^63 as unsigned, and a float past
// 2^53 could be a rounded integer.
std::optional<int64_t> IntegerOf(const json& value) {
  if (value.is_number_float()) {
    constexpr double kExactLimit = int64_t{1} << 53;
    const double number = value.get<double>();
    if (!(std::abs(number) <= kExactLimit) || number != std::trunc(number)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  return value.get<int64_t>();
}

std::string Describe(IntRange range) { return absl::StrCat("[", range.min, ", ", range.max, "]"); }

}  // namespace

JsonFields::JsonFields(const json& object, std::string where, IntegerForm integers)
    : object_(&object), where_(std::move(where)), integers_(integers) {}

absl::StatusOr<JsonFields> JsonFields::Of(const json& object, std::string where,
                                          IntegerForm integers) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": expected an object, got ", DescribeJson(object)));
  }
  return JsonFields(object, std::move(where), integers);
}

std::optional<int64_t> JsonFields::AsInt(const json& value, IntRange range) const {
  if (value.is_number_float() && integers_ == IntegerForm::kInteger) return std::nullopt;
  const std::optional<int64_t> number = IntegerOf(value);
  if (!number || *number < range.min || *number > range.max) return std::nullopt;
  return number;
}

const json* JsonFields::Find(std::string_view name) const {
  const auto member = object_->find(name);
  if (member == object_->end() || member->is_null()) return nullptr;
  return &*member;
}

absl::Status JsonFields::Unexpected(std::string_view name, std::string_view expected) const {
  const json* const value = Find(name);
  return absl::InvalidArgumentError(
      absl::StrCat(where_, ": ", ToAbsl(name), ": expected ", ToAbsl(expected), ", got ",
                   value == nullptr ? "nothing" : DescribeJson(*value)));
}

absl::Status JsonFields::RefuseOthers(absl::Span<const std::string_view> known) const {
  constexpr size_t kMaxListLength = 175;
  for (const auto& [name, value] : object_->items()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat(where_, ": ", DescribeJson(name),
                                                     " is not supported; known are ",
                                                     BoundedList(known, kMaxListLength)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> JsonFields::OptionalInt(std::string_view name,
                                                               IntRange range) const {
  const json* const value = Find(name);
  if (value == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> number = AsInt(*value, range);
  if (!number) return Unexpected(name, "an integer in " + Describe(range));
  return number;
}

absl::StatusOr<std::optional<std::vector<int64_t>>> JsonFields::OptionalInts(std::string_view name,
                                                                             IntRange range) const {
  const json* const value = Find(name);
  if (value == nullptr) return std::optional<std::vector<int64_t>>();
  const std::string expected = "an integer or a list of integers in " + Describe(range);
  std::vector<int64_t> numbers;
  const json single = value->is_array() ? json() : json::array({*value});
  for (const json& element : value->is_array() ? *value : single) {
    const std::optional<int64_t> number = AsInt(element, range);
    if (!number) return Unexpected(name, expected);
    numbers.push_back(*number);
  }
  return std::optional(std::move(numbers));
}

absl::StatusOr<std::optional<double>> JsonFields::OptionalDouble(std::string_view name,
                                                                 DoubleRange range) const {
  const json* const value = Find(name);
  if (value == nullptr) return std::optional<double>();
  // Ranges are finite, so NaN and infinities are refused.
  if (value->is_number() && value->get<double>() >= range.min &&
      value->get<double>() <= range.max) {
    return std::optional(value->get<double>());
  }
  return Unexpected(name, absl::StrCat("a number in [", range.min, ", ", range.max, "]"));
}

absl::StatusOr<std::optional<bool>> JsonFields::OptionalBool(std::string_view name) const {
  const json* const value = Find(name);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_boolean()) return Unexpected(name, "true or false");
  return std::optional(value->get<bool>());
}

absl::StatusOr<std::optional<std::string>> JsonFields::OptionalString(std::string_view name) const {
  const json* const value = Find(name);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return Unexpected(name, "a string");
  return std::optional(value->get<std::string>());
}

absl::StatusOr<std::optional<JsonFields>> JsonFields::OptionalObject(std::string_view name) const {
  const json* const value = Find(name);
  if (value == nullptr) return std::optional<JsonFields>();
  if (!value->is_object()) return Unexpected(name, "an object");
  return std::optional(JsonFields(*value, absl::StrCat(where_, ": ", ToAbsl(name)), integers_));
}

absl::StatusOr<int64_t> JsonFields::Int(std::string_view name, IntRange range) const {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> value, OptionalInt(name, range));
  if (!value) return Unexpected(name, "an integer in " + Describe(range));
  return *value;
}

absl::StatusOr<double> JsonFields::Double(std::string_view name, DoubleRange range) const {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> value, OptionalDouble(name, range));
  if (!value) return Unexpected(name, "a number");
  return *value;
}

absl::StatusOr<bool> JsonFields::Bool(std::string_view name) const {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> value, OptionalBool(name));
  if (!value) return Unexpected(name, "true or false");
  return *value;
}

absl::StatusOr<std::string> JsonFields::String(std::string_view name) const {
  REPRISE_ASSIGN_OR_RETURN(std::optional<std::string> value, OptionalString(name));
  if (!value) return Unexpected(name, "a string");
  return *std::move(value);
}

absl::StatusOr<JsonFields> JsonFields::Object(std::string_view name) const {
  REPRISE_ASSIGN_OR_RETURN(std::optional<JsonFields> value, OptionalObject(name));
  if (!value) return Unexpected(name, "an object");
  return *std::move(value);
}

absl::StatusOr<std::vector<int64_t>> JsonFields::Ints(std::string_view name, IntRange range) const {
  const json* const value = Find(name);
  if (value == nullptr || !value->is_array()) {
    return Unexpected(name, "a list of integers in " + Describe(range));
  }
  REPRISE_ASSIGN_OR_RETURN(std::optional<std::vector<int64_t>> numbers, OptionalInts(name, range));
  return std::move(numbers).value_or(std::vector<int64_t>());
}

absl::StatusOr<const json*> JsonFields::Array(std::string_view name) const {
  const json* const value = Find(name);
  if (value == nullptr || !value->is_array()) return Unexpected(name, "an array");
  return value;
}

}  // namespace reprise
