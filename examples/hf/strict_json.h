// Unstable: any version may change this header (docs/embedding.md).
//
// Parses JSON from untrusted files: under limits, and without accepting anything ambiguous.
//
//   REPRISE_ASSIGN_OR_RETURN(nlohmann::json config, ReadJsonFile(folder + "/config.json"));
//
// Stricter than nlohmann::json::parse(), which keeps the last of two equal names, nests as deep as
// the stack allows and throws. Thread safety: pure functions.

#ifndef REPRISE_HF_STRICT_JSON_H_
#define REPRISE_HF_STRICT_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace reprise {

struct JsonLimits {
  // The nesting of objects and arrays.
  int max_depth = 32;
  // Objects, arrays, strings, numbers and literals together, names of members not counted. A
  // tokenizer of 128 k tokens has a tenth of this; a parsed value takes about 40 bytes.
  int64_t max_values = 8'000'000;
  // Whether NaN, Infinity and -Infinity are numbers. JSON has no such numbers, but Python's json
  // module, which writes config.json, has them.
  bool has_non_finite = false;
};

// Exactly one JSON value. An integer that fits neither int64_t nor uint64_t becomes a
// floating-point number. Errors: InvalidArgument for a name that occurs twice in an object, a limit
// exceeded, a number beyond double, and text that is not JSON or not UTF-8. Messages of the last
// two have the line and the column (in bytes), both from 1, and the last also the expected token:
// "not valid JSON at line 2, column 7: expected a value, got '}'".
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const JsonLimits& limits = {});

// The value in a file. Errors: those of MappedFile::Open() and ParseJson(), naming `path`.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path, const JsonLimits& limits = {});

// ReadJsonFile() of a file that Python's programs write: config.json, generation_config.json or
// tokenizer_config.json. Its numbers may be non-finite.
absl::StatusOr<nlohmann::json> ReadConfigFile(const std::string& path);

// A value as an error message shows it: "[1,2]" or, if that is long, "an array of 5000 values".
// Never more than about 60 characters.
std::string DescribeJson(const nlohmann::json& value);

}  // namespace reprise

#endif  // REPRISE_HF_STRICT_JSON_H_
