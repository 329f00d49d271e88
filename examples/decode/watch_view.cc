#include "examples/decode/watch_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace reprise {
namespace {

double Part(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string Bar(double part) {
  constexpr int kWidth = 30;
  const int filled = std::clamp(static_cast<int>(part * kWidth + 0.5), 0, kWidth);
  return absl::StrCat("[", std::string(filled, '#'), std::string(kWidth - filled, '.'), "]");
}

double Speed(int64_t before, int64_t now, double seconds) {
  return seconds > 0 ? static_cast<double>(now - before) / seconds : 0;
}

}  // namespace

std::string WatchLines(const EngineMetrics& before, const EngineMetrics& now, double seconds) {
  const int64_t num_steps = now.num_graph_replays + now.num_eager_steps;
  std::string lines = absl::StrFormat(
      "rows    %d running, %d waiting, %d requests, %d preempted\n"
      "blocks  %s %d of %d\n"
      "prefix  %s %.0f%% of %d prompt tokens found\n"
      "graphs  %s %.0f%% of %d steps replayed\n"
      "speed   %.1f tokens/s, %.1f prompt tokens/s\n",
      now.num_running, now.num_waiting, now.num_requests, now.num_preemptions,
      Bar(Part(now.num_blocks_used, now.num_blocks)), now.num_blocks_used, now.num_blocks,
      Bar(Part(now.num_prefix_tokens_hit, now.num_prefix_tokens)),
      100 * Part(now.num_prefix_tokens_hit, now.num_prefix_tokens), now.num_prefix_tokens,
      Bar(Part(now.num_graph_replays, num_steps)), 100 * Part(now.num_graph_replays, num_steps),
      num_steps, Speed(before.num_generated_tokens, now.num_generated_tokens, seconds),
      Speed(before.num_prompt_tokens, now.num_prompt_tokens, seconds));
  if (now.speculation.num_drafts > 0) {
    const double accepted = Part(now.speculation.num_accepted, now.speculation.num_drafts);
    absl::StrAppendFormat(&lines, "drafts  %s %.0f%% of %d accepted\n", Bar(accepted),
                          100 * accepted, now.speculation.num_drafts);
  }
  return lines;
}

bool WatchView::IsDue() const {
  return mode_ == ProgressLine::Mode::kShown && Clock::now() - last_time_ >= kInterval;
}

void WatchView::Show(const EngineMetrics& metrics) {
  const Clock::time_point now = Clock::now();
  const std::string lines =
      WatchLines(last_, metrics, std::chrono::duration<double>(now - last_time_).count());
  last_ = metrics;
  last_time_ = now;
  if (mode_ == ProgressLine::Mode::kShown) Write(lines);
}

void WatchView::Finish(const EngineMetrics& metrics) {
  Write(WatchLines({}, metrics, std::chrono::duration<double>(Clock::now() - begin_).count()));
}

void WatchView::Write(const std::string& lines) {
  // Up to the first line that is shown; the rest of each line is cleared.
  if (num_lines_ > 0) out_ << "\x1b[" << num_lines_ << "A";
  out_ << (mode_ == ProgressLine::Mode::kShown ? absl::StrReplaceAll(lines, {{"\n", "\x1b[K\n"}})
                                               : lines)
       << std::flush;
  num_lines_ = static_cast<int>(std::count(lines.begin(), lines.end(), '\n'));
}

}  // namespace reprise
