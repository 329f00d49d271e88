// Counters and gauges of an engine, as a struct and as text for Prometheus.
//
//   const EngineMetrics metrics = engine.metrics();
//   response.body = PrometheusText(metrics);
//
// Thread safety: values.

#ifndef REPRISE_ENGINE_ENGINE_METRICS_H_
#define REPRISE_ENGINE_ENGINE_METRICS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "reprise/engine/request.h"
#include "reprise/engine/speculation_policy.h"

namespace reprise {

// A histogram of durations. Fixed size; Observe() does not allocate.
class LatencyHistogram {
 public:
  // Upper bounds of the buckets in seconds, inclusive: from a fast decode step to a long queue. One
  // more bucket counts longer durations.
  static constexpr std::array<double, 16> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
  static constexpr int kNumBuckets = static_cast<int>(kBounds.size()) + 1;

  // A negative duration, from a clock that was set back, counts as 0.
  void Observe(absl::Duration duration);

  int64_t count() const { return count_; }
  double sum_seconds() const { return sum_seconds_; }
  int64_t bucket(int i) const { return buckets_[i]; }  // not cumulative

 private:
  std::array<int64_t, kNumBuckets> buckets_ = {};
  int64_t count_ = 0;
  double sum_seconds_ = 0;
};

struct EngineMetrics {
  // Current values.
  int num_waiting = 0;  // sequences
  int num_running = 0;
  int num_blocks = 0;            // in the cache, without the null block
  int num_blocks_used = 0;       // by running sequences
  int num_swap_blocks = 0;       // in host memory, without host block 0
  int num_swap_blocks_used = 0;  // by waiting sequences

  // Totals since the engine was created.
  int64_t num_requests = 0;  // added
  int64_t num_refused = 0;   // Add() returned an error
  int64_t num_prompt_tokens = 0;
  int64_t num_generated_tokens = 0;
  int64_t num_forced_tokens = 0;  // Request::forced_tokens; not counted in the latencies
  std::array<int64_t, kNumFinishReasons> num_finished = {};  // sequences, by FinishReason
  int64_t num_preemptions = 0;
  int64_t num_swap_preemptions = 0;   // preemptions by a swap; all others recompute
  int64_t num_swapped_out_bytes = 0;  // copied to host memory
  int64_t num_swapped_in_bytes = 0;   // copied back from host memory
  int64_t num_forks = 0;              // sequences that shared the prefill of their request
  int64_t num_prefix_tokens = 0;      // tokens looked up in the cache
  int64_t num_prefix_tokens_hit = 0;  // tokens found in the cache
  int64_t num_steps = 0;              // launched
  int64_t num_failed_steps = 0;       // refused at launch, or failed afterwards
  SpeculationStatistics speculation;
  int64_t num_graph_replays = 0;
  int64_t num_eager_steps = 0;
  LatencyHistogram time_to_first_token;  // per sequence, from Add()
  LatencyHistogram inter_token_latency;  // between two tokens of a sequence
};

// Returns the metrics in Prometheus' text format, version 0.0.4. Metric names begin with `prefix`
// and an underscore, for example reprise_generated_tokens_total. REQUIRES: `prefix` is a valid
// metric name.
std::string PrometheusText(const EngineMetrics& metrics, std::string_view prefix = "reprise");

}  // namespace reprise

#endif  // REPRISE_ENGINE_ENGINE_METRICS_H_
