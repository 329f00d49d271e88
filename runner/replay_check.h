// Compares replayed steps with eager runs of the same steps: ReplayCheck::kEveryReplay.
//
//   ReplayChecker checker;
//   // Capture and replay the step of `key` with this watch, which keeps copies of the tensors:
//   StepWatch* kept = checker.WatchOf(key);
//   // After a replay, run the step again over the same step arrays, with this watch:
//   ReplayComparison eager = checker.Compare(key, shape);
//   REPRISE_RETURN_IF_ERROR(RunEagerly(key, &eager));   // returns eager.End()
//   // Internal: the replay of 4 seqs x 1, tokens is not the step that it was captured from:
//   // expected 'layer 1 out' at [2, 0, 17] 0.5 as in the eager run, got 0.25
//
// The checker owns the memory of the copies, and graphs write it. Keys share this memory, so only
// the tensors of the latest replay can be compared.
//
// Thread safety: none; one owner. Must outlive the graphs that were captured with its watches.
// Cost: the graph copies every watched tensor, and each comparison waits for the device.

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

// Copies of a replay's tensors, in the order of the forward pass.
class KeptTensors : public StepWatch {
 public:
  struct Entry {
    std::string name;
    at::Tensor tensor;  // a copy, contiguous
  };

  // memory[i] holds the i-th tensor of each key. If a key needs more memory than earlier keys,
  // memory[i] is replaced for this key and later keys. `memory` must outlive this object.
  explicit KeptTensors(std::vector<at::Tensor>* memory) : memory_(memory) {}

  // The first pass allocates, so it must not be captured: use a graph's warm-up. Passes after the
  // first successful pass must watch the same names, shapes and dtypes; otherwise End() returns
  // Internal.
  void Begin() override;
  void See(std::string_view name, const at::Tensor& tensor, WatchedRows rows) override;
  absl::Status End() override;

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  at::Tensor Room(const at::Tensor& tensor);

  std::vector<at::Tensor>* memory_;
  std::vector<Entry> entries_;
  bool is_complete_ = false;  // a pass has ended: the entries are final
  size_t num_seen_ = 0;       // tensors of this pass
  absl::Status status_;       // of this pass
};

// Compares each tensor with the replay's tensor, bit by bit, except rows of padding.
class ReplayComparison : public StepWatch {
 public:
  ReplayComparison(const KeptTensors* kept, const GraphKey& key, const StepShape& shape)
      : kept_(kept), key_(key), shape_(shape) {}

  void Begin() override;
  void See(std::string_view name, const at::Tensor& tensor, WatchedRows rows) override;
  // Errors: Internal naming the first tensor that differs, and the index; InvalidArgument if a
  // tensor lacks the rows that `rows` states.
  absl::Status End() override;

 private:
  absl::Status Compare(const KeptTensors::Entry& kept, const at::Tensor& tensor,
                       WatchedRows rows) const;
  // Returns the number of rows that such a tensor must have. REQUIRES: not kAll.
  int NumRows(WatchedRows rows) const;
  // Clears the rows of padding in `differs` [NumRows(rows), ...] bool.
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
  // Returns the watch for the step of `key`. Its address is constant.
  StepWatch* WatchOf(const GraphKey& key) { return &KeptOf(key); }

  // Returns the watch for an eager run of the step of `key` after its replay. `shape`: the live
  // counts of the step.
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
