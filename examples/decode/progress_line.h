// A progress line of a terminal for a long action; it disappears at the end.
//
//   ProgressLine progress(std::cerr, ProgressLine::ForTerminal(STDERR_FILENO));
//   progress.Show("setting up");
//   progress.Show(LoadingBar(8'000'000'000, 16'100'000'000, 1.5));
//   // loading weights [##########..........] 8.0 of 16.1 GB, 5.2 GB/s
//   progress.Clear();
//
// Thread safety: none. The stream must outlive the line; the destructor clears it.

#ifndef EXAMPLES_DECODE_PROGRESS_LINE_H_
#define EXAMPLES_DECODE_PROGRESS_LINE_H_

#include <cstdint>
#include <ostream>
#include <string>
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

// After `seconds`; if that is 0, no speed is shown. REQUIRES: 0 <= num_bytes <= total_bytes.
std::string LoadingBar(int64_t num_bytes, int64_t total_bytes, double seconds);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_PROGRESS_LINE_H_
