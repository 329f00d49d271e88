// Chooses the captured graph that serves a step, or returns the reason why the step runs eagerly.
//
// A GraphSet owns the captured graphs, the sizes at which steps are captured, the padding of a
// batch to one of these sizes, and the decision between replay and eager execution. No other code
// pads a batch or looks up a graph: if padding and lookup were separate, padded batches could
// silently miss their graph.
//
//   GraphDecision d = graphs.Decide({.num_seqs = 13, .num_tokens = 13, .max_query_len = 1});
//   // d.kind == kReplay, d.key.padded_num_seqs == 16; or d.kind == kEager with d.reason
//   ... fill the step buffers, padded to d.key ...
//   if (d.kind == GraphDecision::Kind::kReplay) {
//     REPRISE_ASSIGN_OR_RETURN(d, graphs.Replay(d.key, make_step, fingerprint));
//   } else {
//     ... run the step eagerly at d.key ...
//   }
//   graphs.Count(d, shape);
//
// Lifetime of a set: Create -> CaptureAll (or lazily, key by key) -> Decide/Replay any number of
// times -> destruction of the set with all its graphs. The graphs share one memory pool, so two
// replays of a set never run at the same time.
//
// Thread safety: not thread-safe; one owner. Ownership: the set owns the graphs. The caller owns
// the backend and the buffers that captured code reads and writes; they must outlive the set, at
// unchanged addresses. Cost: Decide, Replay of a captured key and Count take O(log) time in the
// number of captured sizes, query lengths and tokens, and do not allocate.

#ifndef REPRISE_GRAPHS_GRAPH_SET_H_
#define REPRISE_GRAPHS_GRAPH_SET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/graphs/graph_backend.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/graphs/graph_report.h"
#include "reprise/graphs/graph_set_options.h"

namespace reprise {

class GraphSet {
 public:
  // Makes the work of a step for one key. The backend runs that work as warm-up. The GPU backend
  // runs it again during the capture, the CPU backend at each replay. The work must be idempotent
  // over unchanged step buffers (graphs/graph_backend.h).
  using StepMaker = std::function<std::function<absl::Status()>(const GraphKey&)>;

  // `backend` must outlive the set. It may be null if mode is kOff.
  // Errors: InvalidArgument naming the field.
  static absl::StatusOr<std::unique_ptr<GraphSet>> Create(const GraphSetOptions& options,
                                                          GraphBackend* backend);

  GraphSet(const GraphSet&) = delete;
  GraphSet& operator=(const GraphSet&) = delete;

  // Returns the keys of this set in the order of capture: flat keys, then keys with a common
  // prefix, then mixed keys. Each group is sorted by padded tokens, then by sequences, largest
  // first. A budget is therefore spent on flat graphs first.
  std::vector<GraphKey> keys() const;

  // Returns the graph that serves `shape`, or the reason for an eager step. The search depends on
  // the kind of step:
  // - Without drafts: the graph with the smallest captured query length and number of sequences
  //   that hold the step. Uses the flat graph of that size if no cascade graph exists.
  // - If no such graph exists and no common prefix is to be read once: the smallest mixed graph
  //   that holds the step, by tokens, then by sequences.
  // - With drafts: the graph with the smallest captured numbers of drafts and sequences that hold
  //   the step.
  // - With drafts and given tokens: the smallest mixed graph that holds the step, by tokens, then
  //   by sequences.
  // If no graph holds the step, the reason is why no graph of a query length or draft count does.
  // For drafts with given tokens, the reason is kDraftsAmongTokens. Steps without drafts that need
  // earlier logits always run eagerly (kEarlierLogits).
  //
  // Does not count the step. The result depends only on the options, the captured graphs and
  // whether the budget has been exceeded. In kLazy mode, returns kReplay for a key that is not
  // captured yet, unless the budget has been exceeded; Replay() captures the key. If tokens have
  // graphs, embeddings are padded like tokens, even if embeddings have no graph. REQUIRES: counts
  // are not negative, max_query_len >= 1, num_tokens <= num_seqs * max_query_len.
  GraphDecision Decide(const StepShape& shape) const;

  // Whether `key` has a graph already. If so, Replay() does not capture.
  bool is_captured(const GraphKey& key) const { return graphs_.contains(key); }

  // Estimates the memory for capturing all keys by trial captures of the largest key of each kind.
  // A kind is a query length or mixed, a draft count, an input, and cascade or flat. The estimate
  // is the sum of three terms, limited to the budget: the largest pool of all kinds that are not
  // mixed; the largest pool of the mixed kinds, which are captured after smaller keys; and the
  // driver's memory for every key. Returns 0 for kOff. Call it with a minimal KV cache, before the
  // real cache is sized. Does not change the set.
  absl::StatusOr<int64_t> EstimateBytes(const StepMaker& make_step) const;

  // kEager: captures every key that has no graph yet, in the order of keys(). Exceeding the budget
  // is not an error. After an error, the set keeps the graphs captured so far. kOff and kLazy: does
  // nothing.
  absl::Status CaptureAll(const StepMaker& make_step, const Fingerprint& fingerprint);

  // Replays the graph of `key`. In kLazy mode, captures the graph first if necessary. Returns the
  // final decision: kReplay with `key`, or kEager with kOverBudget if the lazy capture exceeded the
  // budget. In that case the warm-up of the capture has already run the step once, at `key`.
  // Errors: FailedPrecondition with the first difference if `fingerprint` differs from the
  // capture's (capacities, shapes or addresses have changed), or if `key` has not been captured;
  // InvalidArgument if `key` is not one of keys(); errors of the step.
  absl::StatusOr<GraphDecision> Replay(const GraphKey& key, const StepMaker& make_step,
                                       const Fingerprint& fingerprint);

  // Counts a step as a replay of its graph, or as an eager step with its reason, and its live and
  // padded rows. Call it once per step, replayed or eager.
  void Count(const GraphDecision& decision, const StepShape& shape);

  const GraphReport& report() const { return report_; }

 private:
  struct Entry {
    std::unique_ptr<CapturedGraph> graph;
    Fingerprint fingerprint;
  };

  GraphSet(GraphSetOptions options, GraphBackend* backend);

  // Returns the key that holds `shape`, captured or not, or the reason why no key does.
  GraphDecision Pad(const StepShape& shape) const;
  GraphDecision PadRows(const StepShape& shape) const;    // considers keys of a query length
  GraphDecision PadDrafts(const StepShape& shape) const;  // considers keys with drafts
  std::optional<GraphKey> MixedKey(const StepShape& shape) const;
  bool HasKey(const GraphKey& key) const {
    return HasRowsKey(key) || HasDraftsKey(key) || HasMixedKey(key);
  }
  bool HasDraftsKey(const GraphKey& key) const;
  bool HasRowsKey(const GraphKey& key) const;
  bool HasMixedKey(const GraphKey& key) const;
  bool HasInput(StepInput input) const;
  // The input of the mixed graphs that serve steps of `input`.
  StepInput MixedInput(StepInput input) const;
  // Whether `key` is a mixed key and not also a key of a query length.
  bool IsMixed(const GraphKey& key) const { return HasMixedKey(key) && !HasRowsKey(key); }
  // Pads embeddings like the same number of tokens, so that both inputs have the same padded shape.
  GraphDecision PadLikeTokens(const StepShape& shape) const;
  absl::Status CaptureOne(const GraphKey& key, const StepMaker& make_step,
                          const Fingerprint& fingerprint);

  GraphSetOptions options_;  // with defaults for sizes and mixed_sizes
  GraphBackend* backend_;
  absl::flat_hash_map<GraphKey, Entry> graphs_;
  bool over_budget_ = false;
  GraphReport report_;
};

}  // namespace reprise

#endif  // REPRISE_GRAPHS_GRAPH_SET_H_
