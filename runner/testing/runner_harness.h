// Drives a ModelRunner over a ToyModel by hand, and computes the expected result of each step: for
// tests of runners on any device.
//
//   RunnerHarness harness = *RunnerHarness::Create({.max_num_seqs = 4}, {});
//   harness.Join(SlotId(0), {1, 2, 3});
//   ASSERT_OK(harness.Step({SlotId(0)}));      // prefill; each later Step() of the slot decodes
//   harness.ExpectTokensAndLogits();           // against a dense forward in float32

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
  // All cache memory is NaN at first, so that any read of what was never written shows.
  static absl::StatusOr<std::unique_ptr<RunnerHarness>> Create(const ModelRunnerOptions& options,
                                                               const ToyModelOptions& model);

  // A sequence enters with the next Step() that has its slot.
  void Join(SlotId slot, std::vector<int32_t> prompt);
  // A sequence leaves with the next Step(); its blocks go back at once.
  void Leave(SlotId slot);

  // Forks the sequence of `from`, which has had a step, into `to`, with another last token: it
  // enters with the next Step() that has its slot. Both share blocks until they write to them.
  void Fork(SlotId from, SlotId to, int32_t last_token);

  // One step of these slots: new ones bring their whole prompt, the others decode. Host memory of
  // the batch is overwritten when it is launched.
  absl::Status Step(const std::vector<SlotId>& slots);

  // Checks that the last step's tokens follow from its logits, and that these are within 1e-4
  // (models of 16 bits: 0.05) of a dense forward over each row's tokens.
  void ExpectTokensAndLogits();
  // The largest difference of the last step's logits from a dense forward; NaN if any is.
  double MaxLogitsError() const;

  const GraphDecision& decision() const { return decision_; }
  // Of the newest step, [rows, vocab_size].
  const at::Tensor& logits() const { return logits_; }
  const std::vector<int32_t>& text(SlotId slot) const { return sequences_[slot.value()].text; }
  ModelRunner& runner() { return *runner_; }

 private:
  struct Sequence {
    std::vector<int32_t> text;  // tokens given and sampled; the last one has no keys yet
    bool is_new = false;
    bool is_fork = false;  // its last token is not known to the device
  };

  RunnerHarness(const ToyModelOptions& model, int max_num_seqs);

  double tolerance_ = 0;
  ToyModel model_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<BlockManager> blocks_;
  std::vector<Sequence> sequences_;  // by slot
  std::vector<SlotId> leaves_;
  std::vector<SlotJoin> joins_;
  std::vector<SlotId> rows_;  // of the last step
  GraphDecision decision_;
  at::Tensor logits_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_RUNNER_HARNESS_H_
