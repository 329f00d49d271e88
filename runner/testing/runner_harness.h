// Drives a ModelRunner over a ToyModel, and computes the expected result of each step. For tests of
// runners on any device.
//
//   RunnerHarness harness = *RunnerHarness::Create({.max_num_seqs = 4}, {});
//   harness.Join(SlotId(0), {1, 2, 3});
//   ASSERT_OK(harness.Step({SlotId(0)}));      // prefill; later Step() calls of the slot decode
//   harness.ExpectTokensAndLogits();           // compares with a dense forward pass in float32

#ifndef REPRISE_RUNNER_TESTING_RUNNER_HARNESS_H_
#define REPRISE_RUNNER_TESTING_RUNNER_HARNESS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/ids.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {

class RunnerHarness {
 public:
  // All cache memory is filled with NaN initially, so that reads of unwritten memory are detected.
  static absl::StatusOr<std::unique_ptr<RunnerHarness>> Create(const ModelRunnerOptions& options,
                                                               const ToyModelOptions& model);

  // The sequence enters with the next Step() that has its slot.
  void Join(SlotId slot, std::vector<int32_t> prompt);
  // The sequence leaves with the next Step(); its blocks are released immediately.
  void Leave(SlotId slot);

  // Forks the sequence of `from`, which has run a step, into `to`, with another last token. The
  // fork enters with the next Step() that has its slot. Both share blocks until they write to them.
  void Fork(SlotId from, SlotId to, int32_t last_token);

  // Runs one step of these slots: new sequences pass their whole prompt, the other sequences
  // decode. The host memory of the batch is overwritten after the launch.
  absl::Status Step(const std::vector<SlotId>& slots);

  // Checks that the last step's tokens follow from its logits, and that the logits are within 1e-4
  // (for 16-bit models, 0.05) of a dense forward pass over each row's tokens.
  void ExpectTokensAndLogits();
  // Returns the largest difference between the last step's logits and a dense forward pass, or NaN
  // if any difference is NaN.
  double MaxLogitsError() const;

  const GraphDecision& decision() const { return decision_; }
  // Logits of the last step, [rows, vocab_size].
  const at::Tensor& logits() const { return logits_; }
  const std::vector<int32_t>& text(SlotId slot) const { return sequences_[slot.value()].text; }
  ModelRunner& runner() { return *runner_; }

 private:
  struct Sequence {
    std::vector<int32_t> text;  // given and sampled tokens; the last one has no keys yet
    bool is_new = false;
    bool is_fork = false;  // the device does not have its last token
  };

  RunnerHarness(const ToyModelOptions& model, int max_num_seqs);

  double tolerance_ = 0;
  ToyModel model_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<BlockManager> blocks_;
  std::vector<Sequence> sequences_;  // by slot
  std::vector<SlotId> leaves_;
  std::vector<SlotJoin> joins_;
  std::vector<SlotId> rows_;  // slots of the last step
  GraphDecision decision_;
  at::Tensor logits_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_RUNNER_HARNESS_H_
