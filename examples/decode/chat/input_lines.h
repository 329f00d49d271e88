// Lines that a user types, or a pipe brings; a signal may come in between.
//
//   SignalEvent interrupt({SIGINT});
//   InputLines lines(STDIN_FILENO, interrupt, {.call = [&] { return engine->Idle(); }});
//   const InputLines::Result line = lines.Next();
//
// Thread safety: none.

#ifndef EXAMPLES_DECODE_CHAT_INPUT_LINES_H_
#define EXAMPLES_DECODE_CHAT_INPUT_LINES_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "examples/decode/chat/input_wait.h"
#include "examples/decode/signal_event.h"

namespace reprise {

class InputLines {
 public:
  enum class Kind {
    kLine,
    kInterrupted,  // by the signal, which is taken; what a terminal had of the line is dropped
    kEnd,
    kFailed,  // the call that is made meanwhile has failed
  };
  struct Result {
    Kind kind = Kind::kEnd;
    std::string text = {};    // without its end; of a kLine
    absl::Status error = {};  // of kFailed
  };

  // The descriptor stays the caller's. Both must outlive the object. `idle` is called while no line
  // comes.
  InputLines(int descriptor, SignalEvent& interrupt, IdleCall idle = {})
      : descriptor_(descriptor), wait_(descriptor, interrupt, std::move(idle)) {}

  // A last line without an end is a line. A failure to read is the end.
  Result Next();

 private:
  const int descriptor_;
  InputWait wait_;
  std::string read_;  // not returned yet
  bool is_at_end_ = false;
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_CHAT_INPUT_LINES_H_
