#include "reprise/hf/strict_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
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

// The words of Python's json module for numbers that JSON does not have.
constexpr std::pair<std::string_view, double> kNonFinite[] = {
    {"-Infinity", -std::numeric_limits<double>::infinity()},
    {"Infinity", std::numeric_limits<double>::infinity()},
    {"NaN", std::numeric_limits<double>::quiet_NaN()}};

bool IsNonFinite(const json& value) {
  return value.is_number_float() && !std::isfinite(value.get<double>());
}

// A text whose non-finite numbers have become strings of the same length, so that positions stay.
struct Replaced {
  std::string text;
  // The values, by the number of strings and names of members that precede them.
  std::map<int64_t, double> values;
};

Replaced ReplaceNonFinite(std::string_view text) {
  Replaced replaced = {.text = std::string(text), .values = {}};
  std::string& out = replaced.text;
  int64_t num_strings = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] == '"') {
      for (++i; i < out.size() && out[i] != '"'; ++i) {
        if (out[i] == '\\') ++i;
      }
      ++num_strings;
      continue;
    }
    for (const auto& [word, value] : kNonFinite) {
      if (out.compare(i, word.size(), word) != 0) continue;
      replaced.values.emplace(num_strings++, value);
      out.replace(i, word.size(), '"' + std::string(word.size() - 2, 'x') + '"');
      i += word.size() - 1;
      break;
    }
  }
  return replaced;
}

// "line 2, column 7" of the byte before `end`, or of the end of the text.
std::string PlaceOf(std::string_view text, size_t end) {
  const std::string_view before = text.substr(0, std::min(text.size(), end == 0 ? 0 : end - 1));
  const size_t newline = before.rfind('\n');
  const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
  return absl::StrCat("line ", 1 + std::count(before.begin(), before.end(), '\n'), ", column ",
                      before.size() - begin + 1);
}

// What may stand where the library expects `token`, the last part of its message. The library names
// the end of an array or an object only, although a comma may stand there, too.
std::string ExpectedNoun(std::string_view token) {
  if (token.empty() || token == "'[', '{', or a literal") return "a value";
  if (token == "string literal") return "a name";
  if (token == "']'" || token == "'}'") return absl::StrCat("',' or ", std::string(token));
  return std::string(token);
}

// The expected and the actual token in the library's message. The message also quotes the text, of
// any length and with control characters: that part is left out. Empty if the message has another
// form. `is_number`: the actual token was a non-finite number.
std::string ReasonOf(std::string_view message, bool is_number) {
  constexpr std::string_view kExpected = "; expected ";
  constexpr std::string_view kLastRead = "; last read: ";
  constexpr std::string_view kUnexpected = "unexpected ";
  const size_t begin = message.find(" - ");
  if (begin == std::string_view::npos) return "";
  std::string_view got = message.substr(begin + 3);
  const size_t expected_begin = got.rfind(kExpected);
  std::string_view expected;
  if (expected_begin != std::string_view::npos) {
    expected = got.substr(expected_begin + kExpected.size());
  }
  if (const size_t end = got.find(kLastRead); end != std::string_view::npos) {
    // The quoted part of an unknown word is short. Of other errors, it could contain kExpected.
    if (!got.starts_with("invalid literal;"))
      return absl::StrCat(": ", std::string(got.substr(0, end)));
    got = "an unknown word";
  } else {
    got = got.substr(0, expected_begin);
    if (!got.starts_with(kUnexpected)) return absl::StrCat(": ", std::string(got));
    got.remove_prefix(kUnexpected.size());
    if (is_number && got == "string literal") got = "number literal";
  }
  return absl::StrCat(": expected ", ExpectedNoun(expected), ", got ", std::string(got));
}

// Builds the value from the parser's events. Each event returns whether to continue; the parser
// then gives the offset of the last token only to parse_error(), so the limits are reported without
// one.
class Builder {
 public:
  // `non_finite`: as in Replaced.
  Builder(const JsonLimits& limits, std::string_view text, std::map<int64_t, double> non_finite,
          json& root)
      : limits_(limits), text_(text), non_finite_(std::move(non_finite)), root_(root) {}

  const absl::Status& status() const { return status_; }

  // The interface that nlohmann::json::sax_parse() requires.
  bool null() { return Add(nullptr) != nullptr; }
  bool boolean(bool value) { return Add(value) != nullptr; }
  bool number_integer(int64_t value) { return Add(value) != nullptr; }
  bool number_unsigned(uint64_t value) { return Add(value) != nullptr; }
  bool number_float(double value, const std::string&) { return Add(value) != nullptr; }
  bool string(std::string& value) {
    const auto number = non_finite_.find(num_strings_++);
    if (number != non_finite_.end()) return Add(number->second) != nullptr;
    return Add(std::move(value)) != nullptr;
  }
  bool binary(json::binary_t&) { return Fail("binary values are not JSON"); }
  bool start_object(size_t) { return Open(json::value_t::object); }
  bool start_array(size_t) { return Open(json::value_t::array); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool key(std::string& name) {
    if (non_finite_.contains(num_strings_++)) {
      return Fail("not valid JSON: expected a name, got number literal");
    }
    auto [member, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(name);
    if (!is_new) return Fail(absl::StrCat("the name ", DescribeJson(name), " occurs twice"));
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception& error) {
    const std::string place = PlaceOf(text_, position);
    if (error.id == 406) return Fail(absl::StrCat("a number is out of range at ", place));
    const bool is_number = non_finite_.contains(num_strings_);
    return Fail(absl::StrCat("not valid JSON at ", place, ReasonOf(error.what(), is_number)));
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
  const std::string_view text_;
  const std::map<int64_t, double> non_finite_;
  json& root_;
  std::vector<json*> open_;  // stable: an object or array has no younger sibling while it is open
  json* member_ = nullptr;   // of the innermost object, once its name is known
  int64_t num_values_ = 0;
  int64_t num_strings_ = 0;  // names of members, too
  absl::Status status_;
};

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text, const JsonLimits& limits) {
  json root;
  Replaced replaced;
  if (limits.has_non_finite) {
    replaced = ReplaceNonFinite(text);
    text = replaced.text;
  }
  Builder builder(limits, text, std::move(replaced.values), root);
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

absl::StatusOr<json> ReadConfigFile(const std::string& path) {
  return ReadJsonFile(path, {.has_non_finite = true});
}

std::string DescribeJson(const json& value) {
  constexpr size_t kMaxLength = 60;
  if (IsNonFinite(value)) {
    const double number = value.get<double>();
    return std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
  }
  if (value.is_object()) return absl::StrCat("an object of ", value.size(), " members");
  size_t length = 0;  // of the strings within, or a little more than enough
  if (const auto* string = value.get_ptr<const json::string_t*>()) length = string->size();
  if (value.is_array() && value.size() <= kMaxLength) {
    for (const json& element : value) {
      // The library writes a non-finite number as null.
      if (element.is_structured() || IsNonFinite(element)) length = kMaxLength + 1;
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
