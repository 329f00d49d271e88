// What a prompt has become, as it is reported.
//
//   std::cout << ToJson(generation) << "\n";
//   // {"prompt_tokens":[0,17],"tokens":[5,1],"text":"n.","finish_reason":"stop"}

#ifndef EXAMPLES_LLAMA_GENERATION_H_
#define EXAMPLES_LLAMA_GENERATION_H_

#include <optional>
#include <string>

#include "examples/llama/prompt.h"
#include "runner/request.h"

namespace reprise {

struct Generation {
  TokenList prompt_tokens = {};  // or the encoder's input, where there is one
  TokenList tokens = {};
  std::optional<std::string> text =
      {};  // of `tokens`, special ones left out; nothing: no tokenizer
  FinishReason finish = FinishReason::kNone;
};

// One line without its end. A text that is absent is null; bytes of it that are no UTF-8 become
// U+FFFD.
std::string ToJson(const Generation& generation);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_GENERATION_H_
