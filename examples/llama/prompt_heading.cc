#include "examples/llama/prompt_heading.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "examples/tokenizer/utf8.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

constexpr size_t kMaxTextBytes = 60;
constexpr size_t kMaxTokens = 12;

std::string TextHeading(std::string text) {
  const bool is_long = text.size() > kMaxTextBytes;
  if (is_long) {
    text.resize(kMaxTextBytes);
    text.resize(SettledUtf8Prefix(text));
  }
  // Quotes and escapes: a line break in the prompt is none in the heading.
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace) + (is_long ? "..." : "");
}

std::string TokensHeading(TokenList tokens) {
  const bool is_long = tokens.size() > kMaxTokens;
  if (is_long) tokens.resize(kMaxTokens);
  return absl::StrJoin(tokens, ",") + (is_long ? ",..." : "");
}

}  // namespace

std::string PromptHeading(int number, const Prompt& prompt) {
  return absl::StrCat("prompt ", number, ": ",
                      prompt.is_text() ? TextHeading(std::get<std::string>(prompt.content))
                                       : TokensHeading(std::get<TokenList>(prompt.content)));
}

}  // namespace reprise
