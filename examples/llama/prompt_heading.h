// A prompt on one line of a terminal.

#ifndef EXAMPLES_LLAMA_PROMPT_HEADING_H_
#define EXAMPLES_LLAMA_PROMPT_HEADING_H_

#include <string>

#include "examples/llama/prompt.h"

namespace reprise {

// "prompt 3: \"hacker\\n\"", "prompt 1: 1,2,3"; the rest of a long one is "...". `number` counts
// from 1.
std::string PromptHeading(int number, const Prompt& prompt);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_PROMPT_HEADING_H_
