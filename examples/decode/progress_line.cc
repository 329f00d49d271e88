#include "examples/decode/progress_line.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace reprise {
namespace {

// To the first column, and erase to the end of the line (ECMA-48).
constexpr char kErase[] = "\r\x1b[K";

constexpr int kWidth = 20;
constexpr double kGigabyte = 1e9;
// Below this, the clock's resolution dominates the speed.
constexpr double kMinSeconds = 0.1;

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

std::string LoadingBar(int64_t num_bytes, int64_t total_bytes, double seconds) {
  const double fraction =
      total_bytes > 0 ? static_cast<double>(num_bytes) / static_cast<double>(total_bytes) : 1;
  const int filled = static_cast<int>(fraction * kWidth);
  std::string bar = absl::StrFormat("loading weights [%s%s] %.1f of %.1f GB",
                                    std::string(filled, '#'), std::string(kWidth - filled, '.'),
                                    num_bytes / kGigabyte, total_bytes / kGigabyte);
  if (seconds >= kMinSeconds) {
    absl::StrAppendFormat(&bar, ", %.1f GB/s", num_bytes / kGigabyte / seconds);
  }
  return bar;
}

}  // namespace reprise
