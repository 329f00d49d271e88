#include "reprise/hf/strict_json.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/mapped_file.h"

namespace reprise {
namespace {

using nlohmann::json;

// Builds the value from the parser's events. Each event returns whether to continue; the parser
// then gives the offset of the last token only to parse_error(), so the limits are reported without
// one.
class Builder {
 public:
  Builder(const JsonLimits& limits, json& root) : limits_(limits), root_(root) {}

  const absl::Status& status() const { return status_; }

  // The interface that nlohmann::json::sax_parse() requires.
  bool null() { return Add(nullptr) != nullptr; }
  bool boolean(bool value) { return Add(value) != nullptr; }
  bool number_integer(int64_t value) { return Add(value) != nullptr; }
  bool number_unsigned(uint64_t value) { return Add(value) != nullptr; }
  bool number_float(double value, const std::string&) { return Add(value) != nullptr; }
  bool string(std::string& value) { return Add(std::move(value)) != nullptr; }
  bool binary(json::binary_t&) { return Fail("binary values are not JSON"); }
  bool start_object(size_t) { return Open(json::value_t::object); }
  bool start_array(size_t) { return Open(json::value_t::array); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool key(std::string& name) {
    auto [member, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(name);
    if (!is_new) return Fail(absl::StrCat("the name ", DescribeJson(name), " occurs twice"));
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception& error) {
    // The library's text quotes the input, including control characters: give the offset, and the
    // library's text only for numbers.
    return Fail(absl::StrCat(error.id == 406 ? "a number is out of range" : "not valid JSON",
                             " at byte ", position));
  }

 private:
  bool Fail(const std::string& message) {
    status_ = absl::InvalidArgumentError(message);
    return false;
  }

  bool Open(json::value_t type) {
    if (static_cast<int>(open_.size()) == limits_.max_depth) {
      return Fail(absl::StrCat("nested deeper than ", limits_.max_depth, " levels"));
    }
    json* const value = Add(type);
    if (value == nullptr) return false;
    open_.push_back(value);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  // Inserts the value at the place that the last events define, and returns it there; null on
  // failure.
  json* Add(json value) {
    if (++num_values_ > limits_.max_values) {
      Fail(absl::StrCat("more than ", limits_.max_values, " values"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      return &open_.back()->get_ref<json::array_t&>().emplace_back(std::move(value));
    }
    *member_ = std::move(value);
    return member_;
  }

  const JsonLimits limits_;
  json& root_;
  std::vector<json*> open_;  // stable: an object or array has no younger sibling while it is open
  json* member_ = nullptr;   // of the innermost object, once its name is known
  int64_t num_values_ = 0;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text, const JsonLimits& limits) {
  json root;
  Builder builder(limits, root);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) return builder.status();
  return root;
}

absl::StatusOr<json> ReadJsonFile(const std::string& path, const JsonLimits& limits) {
  REPRISE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  absl::StatusOr<json> value =
      ParseJson(std::string_view(file.bytes().data(), file.bytes().size()), limits);
  if (!value.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", value.status().message()));
  }
  return value;
}

std::string DescribeJson(const json& value) {
  constexpr size_t kMaxLength = 60;
  if (value.is_object()) return absl::StrCat("an object of ", value.size(), " members");
  size_t length = 0;  // of the strings within, or a little more than enough
  if (const auto* string = value.get_ptr<const json::string_t*>()) length = string->size();
  if (value.is_array() && value.size() <= kMaxLength) {
    for (const json& element : value) {
      if (element.is_structured()) length = kMaxLength + 1;
      if (const auto* string = element.get_ptr<const json::string_t*>()) length += string->size();
    }
  }
  if (length <= kMaxLength && value.size() <= kMaxLength) {
    // Escapes all but ASCII, so that no control character reaches a terminal.
    std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
    text = absl::StrReplaceAll(text, {{"\x7f", "\\u007f"}});
    if (text.size() <= kMaxLength || value.is_number()) return text;
  }
  if (value.is_array()) return absl::StrCat("an array of ", value.size(), " values");
  return absl::StrCat("a string of ", value.get_ref<const json::string_t&>().size(), " bytes");
}

}  // namespace reprise
