// The command chat: loads the model, and answers line by line.

#ifndef EXAMPLES_DECODE_CHAT_CHAT_H_
#define EXAMPLES_DECODE_CHAT_CHAT_H_

#include <cstdio>
#include <ostream>

#include "absl/status/status.h"
#include "examples/decode/loaded_model.h"
#include "examples/decode/options.h"
#include "examples/decode/progress_line.h"

namespace reprise {

struct ChatStreams {
  int in;             // descriptor of what the user says
  std::ostream& out;  // answers
  std::ostream& err;  // progress, prompts to type, statistics, what could not be answered
  ProgressLine::Mode progress = ProgressLine::Mode::kSilent;
  // Not null: where to edit lines (LineEditor); the stream of `err`.
  std::FILE* terminal = nullptr;
};

// Answers each line until the end of the input. SIGINT ends an answer, or drops a line that is
// being typed; nothing else. Lines "/clear", "/help" and "/exit" are commands. A turn that cannot
// be answered says why and changes nothing.
// Errors: those of loading, of CreateEngine() and ChatTemplateOf(); InvalidArgument for a folder
// without a tokenizer and a model with an encoder.
//
// All ranks call it with the same options: rank 0 answers, the others follow its steps. These must
// not end by the SIGINT that a terminal sends to all.
absl::Status RunChat(const DecodeOptions& options, const ChatStreams& streams, RankOfRun rank);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_CHAT_CHAT_H_
