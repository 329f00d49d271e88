#include "examples/llama/prompt.h"

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "examples/llama/strict_json.h"
#include "examples/tokenizer/utf8.h"

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

}  // namespace

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

}  // namespace reprise
