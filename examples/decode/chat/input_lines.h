// Lines that a user types, or a pipe brings; a signal may come in between.
//
//   SignalEvent interrupt({SIGINT});
//   InputLines lines(STDIN_FILENO, interrupt);
//   const InputLines::Result line = lines.Next();
//
// Thread safety: none.

#ifndef EXAMPLES_DECODE_CHAT_INPUT_LINES_H_
#define EXAMPLES_DECODE_CHAT_INPUT_LINES_H_

#include <string>

#include "examples/decode/signal_event.h"

namespace reprise {

class InputLines {
 public:
  enum class Kind {
    kLine,
    kInterrupted,  // by the signal, which is taken; what a terminal had of the line is dropped
    kEnd,
  };
  struct Result {
    Kind kind = Kind::kEnd;
    std::string text = {};  // without its end; of a kLine
  };

  // The descriptor stays the caller's. Both must outlive the object.
  InputLines(int descriptor, SignalEvent& interrupt)
      : descriptor_(descriptor), interrupt_(interrupt) {}

  // A last line without an end is a line. A failure to read is the end.
  Result Next();

 private:
  const int descriptor_;
  SignalEvent& interrupt_;
  std::string read_;  // not returned yet
  bool is_at_end_ = false;
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_CHAT_INPUT_LINES_H_
