#include "reprise/engine/engine_metrics.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST(LatencyHistogramTest, CountsADurationInTheLowestPossibleBucket) {
  LatencyHistogram latencies;
  latencies.Observe(absl::Milliseconds(1));  // a bound is in its bucket
  latencies.Observe(absl::Microseconds(1001));
  latencies.Observe(absl::Seconds(300));
  latencies.Observe(absl::Seconds(301));
  latencies.Observe(absl::InfiniteDuration());
  EXPECT_EQ(latencies.bucket(0), 1);
  EXPECT_EQ(latencies.bucket(1), 1);
  EXPECT_EQ(latencies.bucket(LatencyHistogram::kNumBuckets - 2), 1);
  EXPECT_EQ(latencies.bucket(LatencyHistogram::kNumBuckets - 1), 2);
  EXPECT_EQ(latencies.count(), 5);
}

TEST(LatencyHistogramTest, NegativeDurationsCountAsZero) {
  LatencyHistogram latencies;
  latencies.Observe(-absl::Hours(1));
  latencies.Observe(-absl::InfiniteDuration());
  EXPECT_EQ(latencies.bucket(0), 2);
  EXPECT_EQ(latencies.sum_seconds(), 0);
}

TEST(PrometheusTextTest, ContainsEveryMetric) {
  EngineMetrics metrics;
  metrics.num_waiting = 3;
  metrics.num_blocks = 1024;
  metrics.num_swap_blocks = 77;
  metrics.num_swap_preemptions = 5;
  metrics.num_swapped_out_bytes = 600;
  metrics.num_swapped_in_bytes = 500;
  metrics.num_generated_tokens = int64_t{1} << 60;  // not rounded
  metrics.num_finished[static_cast<int>(FinishReason::kCancelled)] = 4;
  metrics.speculation.Add(/*places=*/3, /*accepted=*/1, /*drafts=*/3);
  metrics.speculation.Add(/*places=*/1, /*accepted=*/1, /*drafts=*/1);
  metrics.speculation.num_catch_up_rows = 7;
  metrics.speculation.num_too_large_steps = 8;
  metrics.speculation.num_unpaid_steps = 9;
  metrics.time_to_first_token.Observe(absl::Milliseconds(30));
  metrics.time_to_first_token.Observe(absl::Seconds(1000));
  const std::string text = PrometheusText(metrics);
  EXPECT_THAT(text, HasSubstr("# TYPE reprise_waiting_sequences gauge\n"
                              "reprise_waiting_sequences 3\n"));
  EXPECT_THAT(text, HasSubstr("\nreprise_cache_blocks 1024\n"));
  EXPECT_THAT(text, HasSubstr("\nreprise_swap_blocks 77\n"));
  EXPECT_THAT(text, HasSubstr("\nreprise_swap_preemptions_total 5\n"));
  EXPECT_THAT(text, HasSubstr("\nreprise_swapped_out_bytes_total 600\n"));
  EXPECT_THAT(text, HasSubstr("\nreprise_swapped_in_bytes_total 500\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE reprise_generated_tokens_total counter\n"
                              "reprise_generated_tokens_total 1152921504606846976\n"));
  EXPECT_THAT(text, HasSubstr("\nreprise_finished_sequences_total{reason=\"cancelled\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("\nreprise_draft_rows_total 2\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE reprise_draft_tokens_total counter\n"
                              "reprise_draft_tokens_total{position=\"0\"} 2\n"
                              "reprise_draft_tokens_total{position=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("reprise_accepted_draft_tokens_total{position=\"0\"} 2\n"
                              "reprise_accepted_draft_tokens_total{position=\"1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("reprise_draft_catch_up_rows_total 7\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE reprise_steps_without_drafts_total counter\n"
                              "reprise_steps_without_drafts_total{reason=\"rows\"} 8\n"
                              "reprise_steps_without_drafts_total{reason=\"time\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("\nreprise_tokens_per_draft_row 2.000000\n"));
  EXPECT_THAT(text, Not(HasSubstr("reason=\"\"")));
  // A bucket counts all durations up to its bound.
  EXPECT_THAT(text, HasSubstr("reprise_time_to_first_token_seconds_bucket{le=\"0.02\"} 0\n"
                              "reprise_time_to_first_token_seconds_bucket{le=\"0.05\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("reprise_time_to_first_token_seconds_bucket{le=\"300\"} 1\n"
                              "reprise_time_to_first_token_seconds_bucket{le=\"+Inf\"} 2\n"
                              "reprise_time_to_first_token_seconds_sum 1000.030000\n"
                              "reprise_time_to_first_token_seconds_count 2\n"));
  EXPECT_THAT(PrometheusText(metrics, "chat"), HasSubstr("\nchat_waiting_sequences 3\n"));
}

TEST(PrometheusTextTest, IsWellFormed) {
  std::set<std::string> named;
  const std::string text = PrometheusText({});
  EXPECT_EQ(text.back(), '\n');
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines.pop_back();
  for (const std::string& line : lines) {
    EXPECT_THAT(line, MatchesRegex("# (HELP|TYPE) reprise_[a-z_]+ .+|"
                                   "reprise_[a-z_]+(\\{[a-z]+=\"[^\"]+\"\\})? [0-9.]+"));
    EXPECT_TRUE(named.insert(line).second) << line << " occurs twice";
  }
}

}  // namespace
}  // namespace reprise
