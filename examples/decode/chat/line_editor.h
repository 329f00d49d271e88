// Lines that a user types at a terminal, with editing and history by libedit: arrows, Ctrl-A,
// Ctrl-R and so on, and what ~/.editrc says.
//
//   SignalEvent interrupt({SIGINT});
//   if (auto editor = LineEditor::Create(STDIN_FILENO, stderr, interrupt, {})) {
//     const InputLines::Result line = editor->Next();
//   }
//
// Thread safety: none.

#ifndef EXAMPLES_DECODE_CHAT_LINE_EDITOR_H_
#define EXAMPLES_DECODE_CHAT_LINE_EDITOR_H_

#include <cstdio>
#include <memory>

#include "examples/decode/chat/input_lines.h"
#include "examples/decode/chat/input_wait.h"
#include "examples/decode/signal_event.h"

namespace reprise {

class LineEditor {
 public:
  virtual ~LineEditor() = default;

  // Null where lines cannot be edited: `in` or `out` is no terminal, the variable TERM is not set
  // or "dumb", or the project was built without libedit. Sets the process's LC_CTYPE, to C.UTF-8 if
  // the user's is not of UTF-8. `in`, `out` and the event must outlive the object; the terminal is
  // in its own mode during Next() only. `idle` is called while no key comes.
  static std::unique_ptr<LineEditor> Create(int in, std::FILE* out, SignalEvent& interrupt,
                                            IdleCall idle);

  // Shows "> " and returns the line, in UTF-8. Ctrl-D in an empty line is the end, and so is a
  // failure to read. A signal drops the line, and so does a failed call.
  virtual InputLines::Result Next() = 0;
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_CHAT_LINE_EDITOR_H_
