// The prompt of a user: a text, or token ids for models without a tokenizer; and, to score a given
// continuation, the tokens to feed in place of sampled ones.
//
//   Prompt a = {.content = "hacker\n"};
//   REPRISE_ASSIGN_OR_RETURN(TokenList ids, ParseTokenList("1,2,3"));
//   Prompt b = {.content = ids, .forced_tokens = {4, 5}};
//
// A file has one prompt per line, each in one of three forms of JSON:
//
//   "hacker\n"                                              a text
//   [0, 3158, 200]                                          token ids
//   {"prompt": "hacker\n", "forced_tokens": [15, 200]}      either, as "prompt" or "prompt_tokens",
//   {"prompt_tokens": [0, 3158, 200]}                       and what to feed in place of samples
//
//   REPRISE_ASSIGN_OR_RETURN(std::vector<Prompt> prompts, ReadPromptFile("prompts.jsonl"));
//
// Empty lines at the end are dropped; lines end with \n or \r\n. The vocabulary is unknown here:
// the engine checks that ids are within it. Values; thread safety: pure functions.

#ifndef EXAMPLES_DECODE_PROMPT_H_
#define EXAMPLES_DECODE_PROMPT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

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
// Errors: InvalidArgument naming the entry that is not an integer in [0, 2^31), or if the list is
// empty.
absl::StatusOr<TokenList> ParseTokenList(std::string_view text);

// At least one prompt, each sound by CheckPrompt(). Errors: those of MappedFile::Open();
// InvalidArgument naming the file and the line, counted from 1.
absl::StatusOr<std::vector<Prompt>> ReadPromptFile(const std::string& path);

// Parses one line. Errors: InvalidArgument with the reason.
absl::StatusOr<Prompt> ParsePromptLine(std::string_view line);

// Names of the members of a prompt's object.
struct PromptMembers {
  const char* text = "prompt";
  const char* tokens = "prompt_tokens";
};

// The prompt of an object of that form. Errors: InvalidArgument with the reason, naming the member.
absl::StatusOr<Prompt> PromptOfJson(const nlohmann::json& value, const PromptMembers& members = {});

// "prompt 3: \"hacker\\n\"", "prompt 1: 1,2,3"; the rest of a long one is "...". `number` counts
// from 1.
std::string PromptHeading(int number, const Prompt& prompt);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_PROMPT_H_
