// Compares replayed steps with the same steps run eagerly: ReplayCheck::kEveryReplay.
//
//   ReplayChecker checker;
//   // The step of `key`, to capture and replay, is made with this watch, which keeps what it sees:
//   StepWatch* kept = checker.WatchOf(key);
//   // After a replay the step is run again over the same step arrays, with this one:
//   ReplayComparison eager = checker.Compare(key, shape);
//   REPRISE_RETURN_IF_ERROR(RunEagerly(key, &eager));   // returns eager.End()
//   // Internal: the replay of 4 seqs x 1, tokens is not the step that it was captured from:
//   // expected 'layer 1 out' at [2, 0, 17] 0.5 as in the eager run, got 0.25
//
// What is kept is in memory of the checker, which graphs write and which does not move while it
// lives. All keys share it: only the newest replay's tensors can be compared.
//
// Thread safety: none; one owner. It must outlive the graphs that were captured with its watches.
// Cost: a copy of every tensor in the graph; comparing waits for the device at every tensor.

#ifndef REPRISE_RUNNER_REPLAY_CHECK_H_
#define REPRISE_RUNNER_REPLAY_CHECK_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/runner/step_watch.h"

namespace reprise {

// The tensors of a replay, in the order of the forward pass.
class KeptTensors : public StepWatch {
 public:
  struct Entry {
    std::string name;
    at::Tensor tensor;  // a copy, contiguous
  };

  // `memory`: of the i-th tensor at i, shared by all keys; it grows to the largest. It must outlive
  // this.
  explicit KeptTensors(std::vector<at::Tensor>* memory) : memory_(memory) {}

  // The first pass finds the memory, so it must not be captured: a graph's warm-up is that pass.
  // Every later one must see the same names and shapes, else End() is Internal.
  void Begin() override;
  void See(std::string_view name, const at::Tensor& tensor, WatchedRows rows) override;
  absl::Status End() override;

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  at::Tensor Room(const at::Tensor& tensor);

  std::vector<at::Tensor>* memory_;
  std::vector<Entry> entries_;
  bool is_complete_ = false;  // a pass has ended: the entries are fixed
  size_t num_seen_ = 0;       // of this pass
  absl::Status status_;       // of this pass
};

// Compares each tensor that it sees with the one of the replay, bit by bit, except in rows of padding.
class ReplayComparison : public StepWatch {
 public:
  ReplayComparison(const KeptTensors* kept, const GraphKey& key, const StepShape& shape)
      : kept_(kept), key_(key), shape_(shape) {}

  void Begin() override;
  void See(std::string_view name, const at::Tensor& tensor, WatchedRows rows) override;
  // Internal, naming the first tensor that differs, and where.
  absl::Status End() override;

 private:
  absl::Status Compare(const KeptTensors::Entry& kept, const at::Tensor& tensor,
                       WatchedRows rows) const;
  // Number of rows that a tensor of that kind has. REQUIRES: not kAll.
  int NumRows(WatchedRows rows) const;
  // Clears the rows of padding of `differs` [NumRows(rows), ...] bool.
  void ForgetPadding(WatchedRows rows, at::Tensor differs) const;
  absl::Status Differs(std::string_view expected, std::string_view got) const;

  const KeptTensors* kept_;
  GraphKey key_;
  StepShape shape_;  // live counts
  size_t num_seen_ = 0;
  absl::Status status_;
};

class ReplayChecker {
 public:
  // The watch of the step of `key`, at an unchanged address.
  StepWatch* WatchOf(const GraphKey& key) { return &KeptOf(key); }

  // To run the step of `key` with, after its replay. `shape`: the live counts of the step.
  ReplayComparison Compare(const GraphKey& key, const StepShape& shape) {
    return ReplayComparison(&KeptOf(key), key, shape);
  }

 private:
  KeptTensors& KeptOf(const GraphKey& key);

  std::vector<at::Tensor> memory_;
  absl::flat_hash_map<GraphKey, std::unique_ptr<KeptTensors>> kept_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_REPLAY_CHECK_H_
