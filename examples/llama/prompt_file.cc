#include "examples/llama/prompt_file.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "examples/llama/json_fields.h"
#include "examples/llama/mapped_file.h"
#include "examples/llama/strict_json.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

using nlohmann::json;

absl::StatusOr<TokenList> TokensOf(const std::string& name, const json& value) {
  if (!value.is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": expected a list of token ids, got ", DescribeJson(value)));
  }
  if (value.empty()) return absl::InvalidArgumentError(absl::StrCat(name, " is empty"));
  TokenList tokens;
  tokens.reserve(value.size());
  for (const json& element : value) {
    // A number above 2^63 is unsigned, and no int64_t.
    const bool fits = element.is_number_unsigned() &&
                      element.get<uint64_t>() <= std::numeric_limits<int32_t>::max();
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat(name, "[", tokens.size(),
                                                     "]: expected a token id in [0, 2147483647], "
                                                     "got ",
                                                     DescribeJson(element)));
    }
    tokens.push_back(element.get<int32_t>());
  }
  return tokens;
}

absl::StatusOr<Prompt> PromptOfObject(const json& value) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(value, "prompt"));
  REPRISE_RETURN_IF_ERROR(fields.RefuseOthers({"prompt", "prompt_tokens", "forced_tokens"}));
  const json* const text = fields.Find("prompt");
  const json* const tokens = fields.Find("prompt_tokens");
  if ((text == nullptr) == (tokens == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected either \"prompt\" or \"prompt_tokens\", got ",
                     text == nullptr ? "neither" : "both"));
  }
  Prompt prompt;
  if (text != nullptr) {
    REPRISE_ASSIGN_OR_RETURN(prompt.content, fields.String("prompt"));
  } else {
    REPRISE_ASSIGN_OR_RETURN(prompt.content, TokensOf("prompt_tokens", *tokens));
  }
  if (const json* const forced = fields.Find("forced_tokens")) {
    REPRISE_ASSIGN_OR_RETURN(prompt.forced_tokens, TokensOf("forced_tokens", *forced));
  }
  return prompt;
}

}  // namespace

absl::StatusOr<Prompt> ParsePromptLine(std::string_view line) {
  REPRISE_ASSIGN_OR_RETURN(json value, ParseJson(line));
  Prompt prompt;
  if (value.is_string()) {
    prompt.content = std::move(value.get_ref<std::string&>());
  } else if (value.is_array()) {
    REPRISE_ASSIGN_OR_RETURN(prompt.content, TokensOf("prompt", value));
  } else if (value.is_object()) {
    REPRISE_ASSIGN_OR_RETURN(prompt, PromptOfObject(value));
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a JSON string, list of token ids or object, got ", DescribeJson(value)));
  }
  if (const absl::Status status = CheckPrompt(prompt); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("prompt ", status.message()));
  }
  return prompt;
}

absl::StatusOr<std::vector<Prompt>> ReadPromptFile(const std::string& path) {
  REPRISE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const absl::string_view text = absl::StripTrailingAsciiWhitespace(
      absl::string_view(file.bytes().data(), file.bytes().size()));
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no prompt"));
  std::vector<Prompt> prompts;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::StatusOr<Prompt> prompt = ParsePromptLine(std::string_view(line.data(), line.size()));
    if (!prompt.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": line ", prompts.size() + 1, ": ", prompt.status().message()));
    }
    prompts.push_back(*std::move(prompt));
  }
  return prompts;
}

}  // namespace reprise
