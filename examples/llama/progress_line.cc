#include "examples/llama/progress_line.h"

#include <unistd.h>

namespace reprise {
namespace {

// To the first column, and erase to the end of the line (ECMA-48).
constexpr char kErase[] = "\r\x1b[K";

}  // namespace

ProgressLine::Mode ProgressLine::ForTerminal(int file_descriptor) {
  return isatty(file_descriptor) == 1 ? Mode::kShown : Mode::kSilent;
}

ProgressLine::ProgressLine(std::ostream& out, Mode mode) : out_(out), mode_(mode) {}

ProgressLine::~ProgressLine() { Clear(); }

void ProgressLine::Show(std::string_view text) {
  if (mode_ == Mode::kSilent) return;
  out_ << kErase << text << std::flush;
  is_shown_ = true;
}

void ProgressLine::Clear() {
  if (!is_shown_) return;
  out_ << kErase << std::flush;
  is_shown_ = false;
}

}  // namespace reprise
