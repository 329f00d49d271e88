// One line of a terminal that says how far a long action is, and disappears when it is over.
//
//   ProgressLine progress(std::cerr, ProgressLine::ForTerminal(STDERR_FILENO));
//   progress.Show("loading: 3 of 32 layers");
//   progress.Clear();
//
// Thread safety: none. The stream must outlive the line; the destructor clears it.

#ifndef EXAMPLES_LLAMA_PROGRESS_LINE_H_
#define EXAMPLES_LLAMA_PROGRESS_LINE_H_

#include <ostream>
#include <string_view>

namespace reprise {

class ProgressLine {
 public:
  enum class Mode {
    kShown,
    kSilent,  // for files and pipes, which have no line to write over
  };

  // kShown if the file descriptor is a terminal.
  static Mode ForTerminal(int file_descriptor);

  ProgressLine(std::ostream& out, Mode mode);
  ~ProgressLine();

  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Replaces what is shown. `text` is one line.
  void Show(std::string_view text);
  void Clear();

 private:
  std::ostream& out_;
  Mode mode_;
  bool is_shown_ = false;
};

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_PROGRESS_LINE_H_
