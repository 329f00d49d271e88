// Memory and replay counts of the graphs of a GraphSet. Tests use the counts to assert that steps
// were replayed.
//
//   EXPECT_EQ(graphs.report().num_replays(), 41);
//   EXPECT_EQ(graphs.report().num_eager_steps(EagerReason::kTooManySeqs), 0);
//   std::cout << graphs.report().ToString();
//
// Each counted step is either a replay or an eager step with exactly one reason. Row counts include
// both.
//
// Thread safety: not thread-safe. GraphSet fills the report; a reader may copy it. Cost: counting a
// step is at most one hash lookup and does not allocate.

#ifndef REPRISE_GRAPHS_GRAPH_REPORT_H_
#define REPRISE_GRAPHS_GRAPH_REPORT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "reprise/graphs/graph_backend.h"
#include "reprise/graphs/graph_key.h"

namespace reprise {

// Statistics of one captured graph.
struct GraphStats {
  GraphKey key;
  GraphBytes bytes;
  double capture_ms = 0;    // includes the warm-up
  int64_t num_replays = 0;  // steps that this graph served
  int64_t live_rows = 0;    // sequences in those steps
  int64_t padded_rows = 0;  // padding rows in those steps
};

// A named number of the report, for JSON and logs.
struct ReportField {
  std::string name;  // "graph_replays", "eager_steps_too_many_sequences", ...
  double value = 0;
};

class GraphReport {
 public:
  // Records the capture of a graph. REQUIRES: `key` has not been recorded before.
  void AddGraph(const GraphKey& key, const GraphBytes& bytes, double capture_ms);

  // Counts a step. REQUIRES: AddGraph(key) precedes AddReplay(key); reason is not kNone.
  void AddReplay(const GraphKey& key, int num_seqs);
  void AddEagerStep(EagerReason reason, int num_seqs, int padded_num_seqs);

  // Graphs in the order of capture.
  const std::vector<GraphStats>& graphs() const { return graphs_; }

  // Returns the statistics of the graph of `key`, or null if there is none.
  const GraphStats* Find(const GraphKey& key) const;

  // Totals over all graphs and eager steps.
  int64_t num_steps() const { return num_replays() + num_eager_steps(); }
  int64_t num_replays() const;
  int64_t num_eager_steps() const;
  int64_t num_eager_steps(EagerReason reason) const;
  int64_t live_rows() const;
  int64_t padded_rows() const;
  int64_t graph_bytes() const;
  double capture_ms() const;

  // Returns the totals as a flat list: "graphs", "graph_bytes", "graph_capture_ms",
  // "graph_replays", "live_rows", "padded_rows", "eager_steps", and "eager_steps_<reason>" for each
  // reason, even if it is zero.
  std::vector<ReportField> Fields() const;

  // Returns a table with one line per graph, then the totals and the reasons that occurred.
  std::string ToString() const;

 private:
  std::vector<GraphStats> graphs_;
  absl::flat_hash_map<GraphKey, int> index_;  // into graphs_
  std::array<int64_t, kNumEagerReasons> eager_steps_ = {};
  int64_t eager_live_rows_ = 0;
  int64_t eager_padded_rows_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_GRAPHS_GRAPH_REPORT_H_
