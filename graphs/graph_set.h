// Chooses the captured graph that serves a step, or gives the reason why none does.
//
// A GraphSet owns the sizes at which a step is captured, the padding of a batch to one of them, the
// captured graphs, and the decision. No other code pads a batch or looks a graph up: if one place
// pads and another looks up, padded batches can silently miss their graph.
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
// Life of a set: Create -> CaptureAll (or lazily, key by key) -> Decide/Replay any number of times
// -> destroyed as a whole. Graphs share one memory pool, so two replays of a set never run at the
// same time.
//
// Thread safety: none; one owner. Ownership: the set owns the graphs; the backend and the buffers
// that captured code reads and writes belong to the caller and must outlive the set, at unchanged
// addresses. Cost: Decide, Replay of a captured key and Count are O(log) in the numbers of captured
// sizes, query lengths and tokens, and allocate nothing.

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
  // Makes the work of a step at one key: run by the backend as warm-up and capture, and on the CPU
  // at each replay. It must be idempotent over unchanged step buffers (graphs/graph_backend.h).
  using StepMaker = std::function<std::function<absl::Status()>(const GraphKey&)>;

  // `backend` must outlive the set; it may be null if mode is kOff.
  // Errors: InvalidArgument naming the field.
  static absl::StatusOr<std::unique_ptr<GraphSet>> Create(const GraphSetOptions& options,
                                                          GraphBackend* backend);

  GraphSet(const GraphSet&) = delete;
  GraphSet& operator=(const GraphSet&) = delete;

  // The keys of this set in the order of capture, largest first: by padded tokens, then sequences.
  // Flat ones come before those with a common prefix, mixed ones last, so that a budget is spent
  // first on the graphs that serve most steps.
  std::vector<GraphKey> keys() const;

  // The graph that serves `shape`, or the reason why none does: the smallest captured query length
  // and number of sequences that hold it; the flat graph of that size if none reads the common
  // prefix once. If these do not hold it, the mixed graph of the fewest tokens, then sequences,
  // that does, unless a common prefix is to be read once: no mixed graph does that. A step with
  // drafts has the graph of the smallest captured numbers of drafts and sequences that hold it; if
  // some of its rows bring tokens, the mixed graph of the fewest tokens, then sequences, that holds
  // it. If none serves it, the reason is why no graph of a query length does, and
  // kDraftsAmongTokens of drafts beside tokens. Does not count the step, and depends only on options
  // and captured graphs. In kLazy mode an uncaptured key is answered with kReplay; Replay() captures
  // it. If tokens have graphs, embeddings are padded like them, whether they have the same graphs or
  // not.
  // REQUIRES: counts are not negative, max_query_len >= 1, num_tokens <= num_seqs * max_query_len.
  GraphDecision Decide(const StepShape& shape) const;

  // Whether the key has a graph by now, so that Replay() captures nothing.
  bool is_captured(const GraphKey& key) const { return graphs_.contains(key); }

  // The memory that capturing all keys is going to take, by trial captures of the largest key of
  // each kind (query length or mixed, input, cascade): the largest of their pools, plus that of
  // mixed keys, which are captured after smaller ones, and the driver's share for every key, but no
  // more than the budget. 0 for kOff. Call it with a minimal KV cache, before
  // the real one is sized. Does not change the set.
  absl::StatusOr<int64_t> EstimateBytes(const StepMaker& make_step) const;

  // kEager: captures every key that has no graph yet, largest first. Passing the budget is not an
  // error. After an error the set keeps the graphs captured before it. kOff and kLazy: does
  // nothing.
  absl::Status CaptureAll(const StepMaker& make_step, const Fingerprint& fingerprint);

  // Replays the graph of `key`, capturing it first in kLazy mode. Returns the final decision: a
  // replay of `key`, or, if its lazy capture passed the budget, kEager and kOverBudget; in that
  // case the step has run once, at `key`, as the warm-up of that capture.
  // Errors: FailedPrecondition naming the first difference if `fingerprint` is not the one of the
  // capture (capacities, shapes or addresses changed under the graph), or if nothing was captured
  // for `key`; InvalidArgument if `key` is not one of keys(); those of the step.
  absl::StatusOr<GraphDecision> Replay(const GraphKey& key, const StepMaker& make_step,
                                       const Fingerprint& fingerprint);

  // Call it once per step, replayed or eager. Counts replays, padded rows and eager steps by
  // reason.
  void Count(const GraphDecision& decision, const StepShape& shape);

  const GraphReport& report() const { return report_; }

 private:
  struct Entry {
    std::unique_ptr<CapturedGraph> graph;
    Fingerprint fingerprint;
  };

  GraphSet(GraphSetOptions options, GraphBackend* backend);

  // The key that holds `shape`, captured or not, or the reason why none does.
  GraphDecision Pad(const StepShape& shape) const;
  GraphDecision PadRows(const StepShape& shape) const;    // to a key of a query length
  GraphDecision PadDrafts(const StepShape& shape) const;  // to a key with drafts
  std::optional<GraphKey> MixedKey(const StepShape& shape) const;
  bool HasKey(const GraphKey& key) const {
    return HasRowsKey(key) || HasDraftsKey(key) || HasMixedKey(key);
  }
  bool HasDraftsKey(const GraphKey& key) const;
  bool HasRowsKey(const GraphKey& key) const;
  bool HasMixedKey(const GraphKey& key) const;
  bool HasInput(StepInput input) const;
  // Of the mixed graphs that serve steps of `input`.
  StepInput MixedInput(StepInput input) const;
  // Mixed, and not of a query length too.
  bool IsMixed(const GraphKey& key) const { return HasMixedKey(key) && !HasRowsKey(key); }
  // The same for either input: with the key that holds as many tokens, if it has one.
  GraphDecision PadLikeTokens(const StepShape& shape) const;
  absl::Status CaptureOne(const GraphKey& key, const StepMaker& make_step,
                          const Fingerprint& fingerprint);

  GraphSetOptions options_;  // sizes and mixed_sizes filled in
  GraphBackend* backend_;
  absl::flat_hash_map<GraphKey, Entry> graphs_;
  bool over_budget_ = false;
  GraphReport report_;
};

}  // namespace reprise

#endif  // REPRISE_GRAPHS_GRAPH_SET_H_
