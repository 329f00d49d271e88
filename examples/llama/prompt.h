// What a user asks to be continued: a text, or token ids for models without a tokenizer; and,
// to score a given continuation, the tokens to feed in place of sampled ones.
//
//   Prompt a = {.content = "hacker\n"};
//   REPRISE_ASSIGN_OR_RETURN(TokenList ids, ParseTokenList("1,2,3"));
//   Prompt b = {.content = ids, .forced_tokens = {4, 5}};
//
// Values. No vocabulary is known here: that ids are small enough is checked by the engine.

#ifndef EXAMPLES_LLAMA_PROMPT_H_
#define EXAMPLES_LLAMA_PROMPT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

using TokenList = std::vector<int32_t>;

struct Prompt {
  std::variant<std::string, TokenList> content;
  TokenList forced_tokens = {};

  bool is_text() const { return std::holds_alternative<std::string>(content); }

  friend bool operator==(const Prompt&, const Prompt&) = default;
};

// InvalidArgument, beginning with "is empty", "is not UTF-8" or "token id", if no model could take
// the prompt: the caller puts the prompt's name in front.
absl::Status CheckPrompt(const Prompt& prompt);

// Token ids in decimal, separated by commas; blanks around them are allowed.
// Errors: InvalidArgument naming the entry that is no integer in [0, 2^31), or if there is none.
absl::StatusOr<TokenList> ParseTokenList(std::string_view text);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_PROMPT_H_
