// The command chat: loads the model, and answers line by line.

#ifndef EXAMPLES_DECODE_CHAT_CHAT_H_
#define EXAMPLES_DECODE_CHAT_CHAT_H_

#include <ostream>

#include "absl/status/status.h"
#include "examples/decode/options.h"
#include "examples/decode/progress_line.h"

namespace reprise {

struct ChatStreams {
  int in;             // descriptor of what the user says
  std::ostream& out;  // answers
  std::ostream& err;  // progress, prompts to type, statistics, what could not be answered
  ProgressLine::Mode progress = ProgressLine::Mode::kSilent;
};

// Answers each line until the end of the input. SIGINT ends an answer, or drops a line that is
// being typed; nothing else. Lines "/clear", "/help" and "/exit" are commands. A turn that cannot
// be answered says why and changes nothing.
// Errors: those of loading, of Engine::Create() and ChatTemplateOf(); InvalidArgument for a folder
// without a tokenizer, a model with an encoder, and for --ranks.
absl::Status RunChat(const DecodeOptions& options, const ChatStreams& streams);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_CHAT_CHAT_H_
