#include "examples/decode/prompt.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/mapped_file.h"
#include "reprise/hf/strict_json.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

absl::Status CheckTokens(const TokenList& tokens) {
  for (const int32_t token : tokens) {
    if (token < 0) {
      return absl::InvalidArgumentError(absl::StrCat("token id must not be negative: got ", token));
    }
  }
  return absl::OkStatus();
}

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
    // A number of 2^63 or more is unsigned and not an int64_t.
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

constexpr size_t kMaxTextBytes = 60;
constexpr size_t kMaxTokens = 12;

std::string TextHeading(std::string text) {
  const bool is_long = text.size() > kMaxTextBytes;
  if (is_long) {
    text.resize(kMaxTextBytes);
    text.resize(SettledUtf8Prefix(text));
  }
  // Quotes and escapes: a line break in the prompt does not break the heading.
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace) + (is_long ? "..." : "");
}

std::string TokensHeading(TokenList tokens) {
  const bool is_long = tokens.size() > kMaxTokens;
  if (is_long) tokens.resize(kMaxTokens);
  return absl::StrJoin(tokens, ",") + (is_long ? ",..." : "");
}

}  // namespace

absl::StatusOr<Prompt> PromptOfJson(const json& value, const PromptMembers& members) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(value, members.text));
  REPRISE_RETURN_IF_ERROR(fields.RefuseOthers({members.text, members.tokens, "forced_tokens"}));
  const json* const text = fields.Find(members.text);
  const json* const tokens = fields.Find(members.tokens);
  if ((text == nullptr) == (tokens == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat("expected either \"", members.text, "\" or \"",
                                                   members.tokens, "\", got ",
                                                   text == nullptr ? "neither" : "both"));
  }
  Prompt prompt;
  if (text != nullptr) {
    REPRISE_ASSIGN_OR_RETURN(prompt.content, fields.String(members.text));
  } else {
    REPRISE_ASSIGN_OR_RETURN(prompt.content, TokensOf(members.tokens, *tokens));
  }
  if (const json* const forced = fields.Find("forced_tokens")) {
    REPRISE_ASSIGN_OR_RETURN(prompt.forced_tokens, TokensOf("forced_tokens", *forced));
  }
  return prompt;
}

absl::Status CheckPrompt(const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt.content)) {
    if (text->empty()) return absl::InvalidArgumentError("is empty");
    if (const std::optional<int64_t> offset = FindInvalidUtf8(*text)) {
      return absl::InvalidArgumentError(absl::StrCat("is not UTF-8: byte ", *offset));
    }
  } else {
    const auto& tokens = std::get<TokenList>(prompt.content);
    if (tokens.empty()) return absl::InvalidArgumentError("is empty");
    if (absl::Status status = CheckTokens(tokens); !status.ok()) return status;
  }
  return CheckTokens(prompt.forced_tokens);
}

absl::StatusOr<TokenList> ParseTokenList(std::string_view text) {
  TokenList tokens;
  int entry = 0;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    ++entry;
    int32_t token = 0;
    if (!absl::SimpleAtoi(part, &token) || token < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("entry ", entry, ": expected a token id in [0, 2147483647], got ",
                       DescribeJson(std::string(part))));
    }
    tokens.push_back(token);
  }
  return tokens;
}

absl::StatusOr<Prompt> ParsePromptLine(std::string_view line) {
  REPRISE_ASSIGN_OR_RETURN(json value, ParseJson(line));
  Prompt prompt;
  if (value.is_string()) {
    prompt.content = std::move(value.get_ref<std::string&>());
  } else if (value.is_array()) {
    REPRISE_ASSIGN_OR_RETURN(prompt.content, TokensOf("prompt", value));
  } else if (value.is_object()) {
    REPRISE_ASSIGN_OR_RETURN(prompt, PromptOfJson(value));
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

std::string PromptHeading(int number, const Prompt& prompt) {
  return absl::StrCat("prompt ", number, ": ",
                      prompt.is_text() ? TextHeading(std::get<std::string>(prompt.content))
                                       : TokensHeading(std::get<TokenList>(prompt.content)));
}

}  // namespace reprise
