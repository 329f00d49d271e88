#include "examples/decode/watch_view.h"

#include <sstream>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

EngineMetrics Metrics() {
  EngineMetrics metrics;
  metrics.num_running = 3;
  metrics.num_waiting = 2;
  metrics.num_requests = 9;
  metrics.num_preemptions = 1;
  metrics.num_blocks = 100;
  metrics.num_blocks_used = 50;
  metrics.num_prefix_tokens = 400;
  metrics.num_prefix_tokens_hit = 100;
  metrics.num_graph_replays = 90;
  metrics.num_eager_steps = 10;
  metrics.num_generated_tokens = 300;
  metrics.num_prompt_tokens = 80;
  return metrics;
}

TEST(WatchViewTest, ShowsWhatTheEngineCounts) {
  EngineMetrics before;
  before.num_generated_tokens = 100;
  EXPECT_EQ(WatchLines(before, Metrics(), 2),
            "rows    3 running, 2 waiting, 9 requests, 1 preempted\n"
            "blocks  [###############...............] 50 of 100\n"
            "prefix  [########......................] 25% of 400 prompt tokens found\n"
            "graphs  [###########################...] 90% of 100 steps replayed\n"
            "speed   100.0 tokens/s, 40.0 prompt tokens/s\n");
}

TEST(WatchViewTest, BeforeTheFirstStepNothingIsDividedByNone) {
  EXPECT_THAT(WatchLines({}, {}, 0), HasSubstr("speed   0.0 tokens/s"));
  EXPECT_THAT(WatchLines({}, {}, 0), Not(HasSubstr("nan")));
}

TEST(WatchViewTest, DraftsHaveALineIfThereAreAny) {
  EngineMetrics metrics = Metrics();
  metrics.speculation.num_drafts = 10;
  metrics.speculation.num_accepted = 4;
  EXPECT_THAT(WatchLines({}, metrics, 1), HasSubstr("40% of 10 accepted\n"));
  EXPECT_THAT(WatchLines({}, Metrics(), 1), Not(HasSubstr("drafts")));
}

TEST(WatchViewTest, OnATerminalAViewReplacesTheOneBefore) {
  std::ostringstream out;
  WatchView view(out, ProgressLine::Mode::kShown);
  EXPECT_FALSE(view.IsDue());
  std::this_thread::sleep_for(WatchView::kInterval);
  EXPECT_TRUE(view.IsDue());
  view.Show(Metrics());
  EXPECT_FALSE(view.IsDue());
  EXPECT_THAT(out.str(), StartsWith("rows    3 running"));
  EXPECT_THAT(out.str(), Not(HasSubstr("\x1b[5A")));
  view.Finish(Metrics());
  EXPECT_THAT(out.str(), HasSubstr("\x1b[5Arows"));
}

TEST(WatchViewTest, InAFileThereIsTheLastOneOnly) {
  std::ostringstream out;
  WatchView view(out, ProgressLine::Mode::kSilent);
  EXPECT_FALSE(view.IsDue());
  view.Show(Metrics());
  EXPECT_EQ(out.str(), "");
  view.Finish(Metrics());
  EXPECT_THAT(out.str(), StartsWith("rows    3 running"));
  EXPECT_THAT(out.str(), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace reprise
