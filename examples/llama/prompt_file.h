// Prompts from a file, one a line, each in one of three forms of JSON:
//
//   "hacker\n"                                              a text
//   [0, 3158, 200]                                          token ids
//   {"prompt": "hacker\n", "forced_tokens": [15, 200]}      either, as "prompt" or "prompt_tokens",
//   {"prompt_tokens": [0, 3158, 200]}                       and what to feed in place of samples
//
//   REPRISE_ASSIGN_OR_RETURN(std::vector<Prompt> prompts, ReadPromptFile("prompts.jsonl"));
//
// Empty lines at the end are dropped; lines end with \n or \r\n. Thread safety: pure functions.

#ifndef EXAMPLES_LLAMA_PROMPT_FILE_H_
#define EXAMPLES_LLAMA_PROMPT_FILE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/llama/prompt.h"

namespace reprise {

// At least one prompt, each sound by CheckPrompt(). Errors: those of MappedFile::Open();
// InvalidArgument naming the file and the line, counted from 1.
absl::StatusOr<std::vector<Prompt>> ReadPromptFile(const std::string& path);

// One line. Errors: InvalidArgument saying what is wrong with it.
absl::StatusOr<Prompt> ParsePromptLine(std::string_view line);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_PROMPT_FILE_H_
