// A view of an engine on a terminal while it runs: rows, blocks, hits, tokens a second.
//
//   WatchView view(std::cerr, ProgressLine::ForTerminal(STDERR_FILENO));
//   while (...) {
//     if (view.IsDue()) view.Show(engine.metrics());
//   }
//   view.Finish(engine.metrics());
//
// Thread safety: none.

#ifndef EXAMPLES_DECODE_WATCH_VIEW_H_
#define EXAMPLES_DECODE_WATCH_VIEW_H_

#include <chrono>
#include <ostream>
#include <string>

#include "examples/decode/progress_line.h"
#include "reprise/engine/engine_metrics.h"

namespace reprise {

// The lines of the view, each with its end. Speeds are those of the `seconds` between the two.
std::string WatchLines(const EngineMetrics& before, const EngineMetrics& now, double seconds);

class WatchView {
 public:
  static constexpr std::chrono::milliseconds kInterval{200};

  // kSilent, for files and pipes: shows nothing before Finish(). The stream must outlive the view.
  WatchView(std::ostream& out, ProgressLine::Mode mode) : out_(out), mode_(mode) {}

  // Whether kInterval has passed since the last Show(). Cheap.
  bool IsDue() const;

  // Replaces what is shown.
  void Show(const EngineMetrics& metrics);

  // Shows it, with the speed from the beginning on; it stays.
  void Finish(const EngineMetrics& metrics);

 private:
  using Clock = std::chrono::steady_clock;

  void Write(const std::string& lines);

  std::ostream& out_;
  ProgressLine::Mode mode_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_time_ = begin_;
  EngineMetrics last_;
  int num_lines_ = 0;  // shown
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_WATCH_VIEW_H_
