#include "reprise/graphs/graph_report.h"

#include <glog/logging.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace reprise {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

std::string FieldName(EagerReason reason) {
  const std::string name(EagerReasonName(reason));
  return absl::StrCat("eager_steps_", absl::StrReplaceAll(name, {{" ", "_"}}));
}

}  // namespace

void GraphReport::AddGraph(const GraphKey& key, const GraphBytes& bytes, double capture_ms) {
  const bool is_new = index_.emplace(key, static_cast<int>(graphs_.size())).second;
  CHECK(is_new) << "the graph is recorded twice: " << key;
  graphs_.push_back({.key = key, .bytes = bytes, .capture_ms = capture_ms});
}

void GraphReport::AddReplay(const GraphKey& key, int num_seqs) {
  const auto it = index_.find(key);
  CHECK(it != index_.end()) << "a replay of a graph that was never captured: " << key;
  CHECK_GE(num_seqs, 0);
  CHECK_LE(num_seqs, key.padded_num_seqs);
  GraphStats& stats = graphs_[it->second];
  ++stats.num_replays;
  stats.live_rows += num_seqs;
  stats.padded_rows += key.padded_num_seqs - num_seqs;
}

void GraphReport::AddEagerStep(EagerReason reason, int num_seqs, int padded_num_seqs) {
  CHECK(reason != EagerReason::kNone) << "an eager step must have a reason";
  CHECK_GE(num_seqs, 0);
  CHECK_LE(num_seqs, padded_num_seqs);
  ++eager_steps_[static_cast<int>(reason)];
  eager_live_rows_ += num_seqs;
  eager_padded_rows_ += padded_num_seqs - num_seqs;
}

const GraphStats* GraphReport::Find(const GraphKey& key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &graphs_[it->second];
}

int64_t GraphReport::num_replays() const {
  int64_t sum = 0;
  for (const GraphStats& graph : graphs_) sum += graph.num_replays;
  return sum;
}

int64_t GraphReport::num_eager_steps() const {
  int64_t sum = 0;
  for (const int64_t steps : eager_steps_) sum += steps;
  return sum;
}

int64_t GraphReport::num_eager_steps(EagerReason reason) const {
  return eager_steps_[static_cast<int>(reason)];
}

int64_t GraphReport::live_rows() const {
  int64_t sum = eager_live_rows_;
  for (const GraphStats& graph : graphs_) sum += graph.live_rows;
  return sum;
}

int64_t GraphReport::padded_rows() const {
  int64_t sum = eager_padded_rows_;
  for (const GraphStats& graph : graphs_) sum += graph.padded_rows;
  return sum;
}

int64_t GraphReport::graph_bytes() const {
  int64_t sum = 0;
  for (const GraphStats& graph : graphs_) sum += graph.bytes.total();
  return sum;
}

double GraphReport::capture_ms() const {
  double sum = 0;
  for (const GraphStats& graph : graphs_) sum += graph.capture_ms;
  return sum;
}

std::vector<ReportField> GraphReport::Fields() const {
  std::vector<ReportField> fields = {
      {"graphs", static_cast<double>(graphs_.size())},
      {"graph_bytes", static_cast<double>(graph_bytes())},
      {"graph_capture_ms", capture_ms()},
      {"graph_replays", static_cast<double>(num_replays())},
      {"live_rows", static_cast<double>(live_rows())},
      {"padded_rows", static_cast<double>(padded_rows())},
      {"eager_steps", static_cast<double>(num_eager_steps())},
  };
  for (int i = 1; i < kNumEagerReasons; ++i) {  // 0 is kNone
    const EagerReason reason = static_cast<EagerReason>(i);
    fields.push_back({FieldName(reason), static_cast<double>(num_eager_steps(reason))});
  }
  return fields;
}

std::string GraphReport::ToString() const {
  constexpr char kLine[] = "%-36s %10.2f %10.1f %10d %10d %10d\n";
  std::string text = absl::StrFormat("%-36s %10s %10s %10s %10s %10s\n", "graph", "MiB",
                                     "capture ms", "replays", "live rows", "padded");
  for (const GraphStats& graph : graphs_) {
    absl::StrAppendFormat(&text, kLine, reprise::ToString(graph.key),
                          static_cast<double>(graph.bytes.total()) / kMiB, graph.capture_ms,
                          graph.num_replays, graph.live_rows, graph.padded_rows);
  }
  absl::StrAppendFormat(&text, kLine, absl::StrCat("all, ", num_eager_steps(), " eager steps"),
                        static_cast<double>(graph_bytes()) / kMiB, capture_ms(), num_replays(),
                        live_rows(), padded_rows());
  for (int i = 1; i < kNumEagerReasons; ++i) {
    const EagerReason reason = static_cast<EagerReason>(i);
    if (num_eager_steps(reason) == 0) continue;
    absl::StrAppendFormat(&text, "eager: %-29s %33d\n", std::string(EagerReasonName(reason)),
                          num_eager_steps(reason));
  }
  return text;
}

}  // namespace reprise
