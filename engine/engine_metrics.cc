#include "reprise/engine/engine_metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace reprise {
namespace {

// Appends the lines of one metric per call.
class PrometheusLines {
 public:
  explicit PrometheusLines(std::string_view prefix) : prefix_(prefix) {}

  void Gauge(absl::string_view name, absl::string_view help, int64_t value) {
    Begin(name, help, "gauge");
    absl::StrAppend(&text_, prefix_, "_", name, " ", value, "\n");
  }

  void Counter(absl::string_view name, absl::string_view help, int64_t value) {
    Begin(name, help, "counter");
    absl::StrAppend(&text_, prefix_, "_", name, " ", value, "\n");
  }

  void Finished(const std::array<int64_t, kNumFinishReasons>& counts) {
    constexpr char kName[] = "finished_sequences_total";
    Begin(kName, "Sequences that have ended, by reason.", "counter");
    for (int i = 0; i < kNumFinishReasons; ++i) {
      const FinishReason reason = static_cast<FinishReason>(i);
      // An engine refuses requests, not sequences: see refused_requests_total.
      if (reason == FinishReason::kNone || reason == FinishReason::kRefused) continue;
      absl::StrAppend(&text_, prefix_, "_", kName, "{reason=\"",
                      std::string(FinishReasonName(reason)), "\"} ", counts[i], "\n");
    }
  }

  // One counter per draft position.
  void Drafts(absl::string_view name, absl::string_view help,
              const std::array<int64_t, kMaxDrafts>& counts) {
    Begin(name, help, "counter");
    for (int i = 0; i < kMaxDrafts; ++i) {
      absl::StrAppend(&text_, prefix_, "_", name, "{position=\"", i, "\"} ", counts[i], "\n");
    }
  }

  // Counters of steps that could have had drafts and had none.
  void PlainSteps(const SpeculationStatistics& speculation) {
    constexpr char kName[] = "steps_without_drafts_total";
    Begin(kName, "Steps whose rows could have had drafts and had none, by reason.", "counter");
    absl::StrAppend(&text_, prefix_, "_", kName, "{reason=\"rows\"} ",
                    speculation.num_too_large_steps, "\n");
    absl::StrAppend(&text_, prefix_, "_", kName, "{reason=\"time\"} ", speculation.num_unpaid_steps,
                    "\n");
  }

  void Average(absl::string_view name, absl::string_view help, double value) {
    Begin(name, help, "gauge");
    absl::StrAppend(&text_, prefix_, "_", name, " ", absl::StrFormat("%.6f", value), "\n");
  }

  void Histogram(absl::string_view name, absl::string_view help,
                 const LatencyHistogram& latencies) {
    Begin(name, help, "histogram");
    int64_t count = 0;  // cumulative, as Prometheus expects
    for (int i = 0; i < LatencyHistogram::kNumBuckets; ++i) {
      count += latencies.bucket(i);
      const bool is_last = i + 1 == LatencyHistogram::kNumBuckets;
      absl::StrAppend(&text_, prefix_, "_", name, "_bucket{le=\"",
                      is_last ? "+Inf" : absl::StrCat(LatencyHistogram::kBounds[i]), "\"} ", count,
                      "\n");
    }
    absl::StrAppend(&text_, prefix_, "_", name, "_sum ",
                    absl::StrFormat("%.6f", latencies.sum_seconds()), "\n");
    absl::StrAppend(&text_, prefix_, "_", name, "_count ", latencies.count(), "\n");
  }

  std::string Take() { return std::move(text_); }

 private:
  void Begin(absl::string_view name, absl::string_view help, absl::string_view type) {
    absl::StrAppend(&text_, "# HELP ", prefix_, "_", name, " ", help, "\n");
    absl::StrAppend(&text_, "# TYPE ", prefix_, "_", name, " ", type, "\n");
  }

  std::string prefix_;
  std::string text_;
};

}  // namespace

void LatencyHistogram::Observe(absl::Duration duration) {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(duration));
  ++buckets_[std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin()];
  ++count_;
  sum_seconds_ += seconds;
}

std::string PrometheusText(const EngineMetrics& metrics, std::string_view prefix) {
  PrometheusLines lines(prefix);
  lines.Gauge("waiting_sequences", "Sequences that wait for a slot or for blocks.",
              metrics.num_waiting);
  lines.Gauge("running_sequences", "Sequences that have a slot.", metrics.num_running);
  lines.Gauge("cache_blocks", "Blocks of the KV cache.", metrics.num_blocks);
  lines.Gauge("cache_blocks_used", "Blocks that running sequences hold.", metrics.num_blocks_used);
  lines.Gauge("swap_blocks", "Blocks of host memory for preempted sequences.",
              metrics.num_swap_blocks);
  lines.Gauge("swap_blocks_used", "Host blocks that waiting sequences hold.",
              metrics.num_swap_blocks_used);
  lines.Counter("requests_total", "Requests that were added.", metrics.num_requests);
  lines.Counter("refused_requests_total", "Requests that were refused.", metrics.num_refused);
  lines.Counter("prompt_tokens_total", "Tokens of the prompts of added requests.",
                metrics.num_prompt_tokens);
  lines.Counter("generated_tokens_total", "Tokens that were generated.",
                metrics.num_generated_tokens);
  lines.Counter("forced_tokens_total", "Tokens that were fed instead of sampled tokens.",
                metrics.num_forced_tokens);
  lines.Finished(metrics.num_finished);
  lines.Counter("preemptions_total", "Preemptions of sequences whose blocks were needed.",
                metrics.num_preemptions);
  lines.Counter("swap_preemptions_total", "Preemptions that moved the blocks to host memory.",
                metrics.num_swap_preemptions);
  lines.Counter("swapped_out_bytes_total", "Bytes of blocks that went to host memory.",
                metrics.num_swapped_out_bytes);
  lines.Counter("swapped_in_bytes_total", "Bytes of blocks that came back from host memory.",
                metrics.num_swapped_in_bytes);
  lines.Counter("forks_total", "Sequences that shared the prefill of their request.",
                metrics.num_forks);
  lines.Counter("prefix_tokens_total", "Tokens that were looked up in the cache.",
                metrics.num_prefix_tokens);
  lines.Counter("prefix_hit_tokens_total", "Tokens that were found in the cache.",
                metrics.num_prefix_tokens_hit);
  lines.Counter("steps_total", "Steps that were launched.", metrics.num_steps);
  lines.Counter("failed_steps_total", "Steps that were refused or failed.",
                metrics.num_failed_steps);
  lines.Counter("draft_rows_total", "Rows of steps that had drafts.", metrics.speculation.num_rows);
  lines.Drafts("draft_tokens_total", "Drafts that were verified, by position in the row.",
               metrics.speculation.num_drafts_at);
  lines.Drafts("accepted_draft_tokens_total", "Drafts that were accepted, by position in the row.",
               metrics.speculation.num_accepted_at);
  lines.Counter("draft_catch_up_rows_total",
                "Rows in which a drafter read tokens decoded without it, and proposed none.",
                metrics.speculation.num_catch_up_rows);
  lines.PlainSteps(metrics.speculation);
  lines.Average("tokens_per_draft_row", "Average number of new tokens per row with drafts.",
                metrics.speculation.tokens_per_row());
  lines.Counter("graph_replays_total", "Steps that replayed a graph.", metrics.num_graph_replays);
  lines.Counter("eager_steps_total", "Steps that ran without a graph.", metrics.num_eager_steps);
  lines.Histogram("time_to_first_token_seconds", "From a request to a sequence's first token.",
                  metrics.time_to_first_token);
  lines.Histogram("inter_token_latency_seconds", "Between two tokens of a sequence.",
                  metrics.inter_token_latency);
  return lines.Take();
}

}  // namespace reprise
