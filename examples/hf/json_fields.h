// Unstable: any version may change this header (docs/embedding.md).
//
// The members of a JSON object, read one by one with their type and range checked: every message
// names the file, the field, what was expected and what was got.
//
//   REPRISE_ASSIGN_OR_RETURN(JsonFields fields, JsonFields::Of(config, "config.json"));
//   REPRISE_ASSIGN_OR_RETURN(int64_t layers, fields.Int("num_hidden_layers", {.min = 1, .max =
//   4096}));
//   // config.json: num_hidden_layers: expected an integer in [1, 4096], got "many"
//
// A null member counts as absent, as it does for the programs that write these files. Whether 64.0
// is an integer is a choice (IntegerForm); 64.5 never is one. Thread safety: as any const object. A
// view: the object given to Of() must outlive it.

#ifndef REPRISE_HF_JSON_FIELDS_H_
#define REPRISE_HF_JSON_FIELDS_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "nlohmann/json_fwd.hpp"

namespace reprise {

// Both ends are included.
struct IntRange {
  int64_t min = 0;
  int64_t max = std::numeric_limits<int64_t>::max();
};
struct DoubleRange {
  double min = 0;
  double max = std::numeric_limits<double>::max();
};

// How an integer may be written.
enum class IntegerForm : int8_t {
  kInteger,  // 64
  kAnyForm,  // also 64.0 and 6.4e1: floating-point numbers up to 2^53 that have no fraction
};

class JsonFields {
 public:
  // Every message begins with `where`. `integers` also holds for the objects within. Errors:
  // InvalidArgument if `object` is not an object.
  static absl::StatusOr<JsonFields> Of(const nlohmann::json& object, std::string where,
                                       IntegerForm integers = IntegerForm::kInteger);

  // The member, or nullopt if it is absent or null. Errors: InvalidArgument if it has another type
  // or is outside the range.
  absl::StatusOr<std::optional<int64_t>> OptionalInt(std::string_view name, IntRange range) const;
  absl::StatusOr<std::optional<double>> OptionalDouble(std::string_view name,
                                                       DoubleRange range) const;
  absl::StatusOr<std::optional<bool>> OptionalBool(std::string_view name) const;
  absl::StatusOr<std::optional<std::string>> OptionalString(std::string_view name) const;
  absl::StatusOr<std::optional<JsonFields>> OptionalObject(std::string_view name) const;
  // A single integer counts as a list of one. An absent list (nullopt) differs from an empty one.
  absl::StatusOr<std::optional<std::vector<int64_t>>> OptionalInts(std::string_view name,
                                                                   IntRange range) const;

  // The same for required members.
  absl::StatusOr<int64_t> Int(std::string_view name, IntRange range) const;
  absl::StatusOr<double> Double(std::string_view name, DoubleRange range) const;
  absl::StatusOr<bool> Bool(std::string_view name) const;
  absl::StatusOr<std::string> String(std::string_view name) const;
  absl::StatusOr<JsonFields> Object(std::string_view name) const;
  // A single integer is not accepted as a list.
  absl::StatusOr<std::vector<int64_t>> Ints(std::string_view name, IntRange range) const;
  absl::StatusOr<const nlohmann::json*> Array(std::string_view name) const;

  // The member unchanged; nullptr if it is absent or null.
  const nlohmann::json* Find(std::string_view name) const;

  // Errors: InvalidArgument naming the first member that is not among `known`, and the known
  // members. Of a list beyond 175 characters, the first names and the number of further names.
  // Unimplemented members are not ignored.
  absl::Status RefuseOthers(absl::Span<const std::string_view> known) const;

  // InvalidArgument: "<where>: <name>: expected <expected>, got <the member>".
  absl::Status Unexpected(std::string_view name, std::string_view expected) const;

  const nlohmann::json& object() const { return *object_; }
  const std::string& where() const { return where_; }
  IntegerForm integers() const { return integers_; }

 private:
  JsonFields(const nlohmann::json& object, std::string where, IntegerForm integers);

  // The value if it is an integer of the form, within the range.
  std::optional<int64_t> AsInt(const nlohmann::json& value, IntRange range) const;

  const nlohmann::json* object_;
  std::string where_;
  IntegerForm integers_;
};

}  // namespace reprise

#endif  // REPRISE_HF_JSON_FIELDS_H_
