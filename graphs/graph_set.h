// Which captured graph serves a step, and if none does, why.
//
// A GraphSet owns the sizes at which a step is captured, the padding of a batch to one of them, the captured graphs,
// and the decision. No other code pads a batch or looks a graph up: a batch padded in one place and looked up in
// another is how padded batches silently never find their graph.
//
//   GraphDecision d = graphs.Decide({.num_seqs = 13, .num_tokens = 13, .max_query_len = 1});
//   // d.kind == kReplay, d.key.padded_num_seqs == 16; or d.kind == kEager and d.reason says why
//   if (d.kind == GraphDecision::Kind::kReplay) status = graphs.Replay(d.key, fingerprint);
//
// Life of a set: Create -> CaptureAll (or lazily, key by key) -> Decide/Replay any number of times -> destroyed as
// a whole. Graphs share one memory pool, so two replays of a set never run at the same time.
//
// Thread safety: none; one owner. Ownership: the set owns the graphs; the backend and the buffers that captured
// code reads and writes belong to the caller and must outlive the set, at unchanged addresses.

#ifndef GRAPHS_GRAPH_SET_H_
#define GRAPHS_GRAPH_SET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graphs/fingerprint.h"
#include "graphs/graph_backend.h"
#include "graphs/graph_key.h"
#include "graphs/graph_report.h"

namespace reprise {

struct GraphSetOptions {
  enum class Mode : int8_t {
    kOff,    // Decide() always answers kEager, kDisabled
    kEager,  // all keys captured by CaptureAll(), before the first step
    kLazy,   // a key is captured when it is first asked for
  };
  Mode mode = Mode::kEager;
  // The most sequences a step may have; default sizes end here (or at 512).
  int max_num_seqs = 0;
  // Captured numbers of sequences, strictly ascending; empty: DefaultGraphSizes(max_num_seqs).
  std::vector<int> sizes;
  // Captured query lengths, ascending; 1 is plain decode, 1 + k verifies up to k drafts.
  std::vector<int> query_lens = {1};
  // No row of a captured step is longer; a capture constant.
  int max_seq_len = 0;
  std::vector<StepInput> inputs = {StepInput::kTokens};
  // Stop capturing (reason kOverBudget) once graphs hold so many bytes. 0: no limit.
  int64_t memory_budget_bytes = 0;
};

// 1, 2, 4, 8, then every 8th up to 256, every 16th up to 512, cut at max_num_seqs, which is itself included
// if it is at most 512.
std::vector<int> DefaultGraphSizes(int max_num_seqs);

class GraphSet {
 public:
  // Makes the work of a step at one key: run by the backend as warm-up and capture, and on the CPU at each replay.
  using StepMaker = std::function<std::function<absl::Status()>(const GraphKey&)>;

  // `backend` must outlive the set. Errors: InvalidArgument naming the field.
  static absl::StatusOr<std::unique_ptr<GraphSet>> Create(const GraphSetOptions& options,
                                                          GraphBackend* backend);

  // The keys of this set, largest first.
  std::vector<GraphKey> keys() const;

  // Which graph serves `shape`, or why none. Counts nothing; pure but for the state of capture. In kLazy mode an uncaptured key
  // is answered with kReplay; Replay() captures it.
  GraphDecision Decide(const StepShape& shape) const;

  // Captures every key, largest first. On an error the set holds what was captured before it.
  absl::Status CaptureAll(const StepMaker& make_step, const Fingerprint& fingerprint);

  // Replays the graph of `key`, capturing it first in kLazy mode. FailedPrecondition naming the first difference if
  // `fingerprint` is not the one of the capture: capacities, shapes or addresses changed under the graph.
  absl::Status Replay(const GraphKey& key, const StepMaker& make_step, const Fingerprint& fingerprint);

  // To be called once a step, whichever way it ran: hits, padded rows and eager steps by reason.
  void Count(const GraphDecision& decision, const StepShape& shape);

  const GraphReport& report() const { return report_; }

 private:
  struct Entry {
    std::unique_ptr<CapturedGraph> graph;
    Fingerprint fingerprint;
  };

  GraphSet(GraphSetOptions options, GraphBackend* backend);
  absl::Status CaptureOne(const GraphKey& key, const StepMaker& make_step,
                          const Fingerprint& fingerprint);

  GraphSetOptions options_;
  GraphBackend* backend_;
  absl::flat_hash_map<GraphKey, Entry> graphs_;
  GraphReport report_;
};

}  // namespace reprise

#endif  // GRAPHS_GRAPH_SET_H_
