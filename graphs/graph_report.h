// The memory of a set's graphs and how often they were replayed, so that a test can assert that the
// graph path was taken.
//
//   EXPECT_EQ(graphs.report().num_replays(), 41);
//   EXPECT_EQ(graphs.report().num_eager_steps(EagerReason::kTooManySeqs), 0);
//   std::cout << graphs.report().ToString();
//
// Every counted step is either a replay or an eager step with one reason; rows count both.
//
// Thread safety: none. Filled by GraphSet; a reader may copy it. Cost: counting a step is a hash
// lookup and allocates nothing.

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

// One captured graph.
struct GraphStats {
  GraphKey key;
  GraphBytes bytes;
  double capture_ms = 0;    // warm-up included
  int64_t num_replays = 0;  // steps it served
  int64_t live_rows = 0;    // sequences in those steps
  int64_t padded_rows = 0;  // padding rows in those steps
};

// A number of the report by name, for JSON and for logs.
struct ReportField {
  std::string name;  // "graph_replays", "eager_steps_too_many_sequences", ...
  double value = 0;
};

class GraphReport {
 public:
  // A graph was captured. REQUIRES: not recorded before.
  void AddGraph(const GraphKey& key, const GraphBytes& bytes, double capture_ms);

  // A step ran. REQUIRES: AddGraph(key) before AddReplay(key); reason is not kNone.
  void AddReplay(const GraphKey& key, int num_seqs);
  void AddEagerStep(EagerReason reason, int num_seqs, int padded_num_seqs);

  // In the order of capture.
  const std::vector<GraphStats>& graphs() const { return graphs_; }

  // The graph of `key`, or null.
  const GraphStats* Find(const GraphKey& key) const;

  // Totals.
  int64_t num_steps() const { return num_replays() + num_eager_steps(); }
  int64_t num_replays() const;
  int64_t num_eager_steps() const;
  int64_t num_eager_steps(EagerReason reason) const;
  int64_t live_rows() const;
  int64_t padded_rows() const;
  int64_t graph_bytes() const;
  double capture_ms() const;

  // The totals as a flat list: "graphs", "graph_bytes", "graph_capture_ms", "graph_replays",
  // "live_rows", "padded_rows", "eager_steps", and "eager_steps_<reason>" for each reason, zero or
  // not.
  std::vector<ReportField> Fields() const;

  // A table, a line a graph, then the totals and the reasons that occurred.
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
